// Frames over two descriptors that never block: a line of text first, then each frame after its
// length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/process/owned_fd.h"

namespace retort::launch {

inline constexpr size_t kMaxFrameBytes = 256 << 10;

// Threads: one at a time.
class FrameStream {
 public:
  FrameStream(OwnedFd in, OwnedFd out);

  int in() const { return in_.get(); }
  int out() const { return out_.get(); }
  // What is sent and has not left.
  size_t unsent() const { return unsent_.rest().size(); }

  // Takes what is there. False once the other end has closed; what came before stays readable.
  bool fill();
  // The first line that begins so; others before it are a shell's greetings. kCorrupt if none comes
  // within kMaxFrameBytes.
  std::optional<std::string> line(std::string_view beginning);
  // The next whole frame; kCorrupt for one that is longer than kMaxFrameBytes.
  std::optional<std::string> next();

  void send_line(std::string_view text);
  void send(std::string_view frame);
  // Writes what the other end takes. False once nobody reads there.
  bool flush();
  void close_out() { out_.reset(); }
  // What has come and was not taken.
  void drop() { received_.take(received_.rest().size()); }

 private:
  // Bytes that are added at the end and taken from the front, each moved a bounded number of times.
  class Bytes {
   public:
    std::string_view rest() const { return std::string_view(bytes_).substr(taken_); }
    void add(std::string_view more) { bytes_ += more; }
    void take(size_t count);

   private:
    std::string bytes_;
    size_t taken_ = 0;  // from the front
  };

  OwnedFd in_, out_;
  Bytes received_, unsent_;
};

}  // namespace retort::launch
