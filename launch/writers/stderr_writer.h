// What a launcher says on stderr, which nobody may be reading: `retort launch r.yaml 2>&1 | less`.
#pragma once

#include <cstdint>
#include <mutex>
#include <streambuf>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/units.h"
#include "launch/writers/background_writer.h"

namespace retort::launch {

// Log lines and what is written to std::cerr, from a thread of its own: neither the threads that
// answer heartbeats nor one that takes a signal wait for a reader. Lines wait; those of the log up
// to `capacity` bytes, beyond which they are left out, and how many were is said before the next
// line. What comes by std::cerr, as why the run failed, is never left out.
//
// Threads: any.
class StderrWriter : public LogSink {
 public:
  struct Options {
    int fd = 2;
    size_t capacity = 256 << 10;
    Duration last_wait{2'000};  // for the last lines to be read
  };
  // kResourceExhausted when there is no descriptor left.
  explicit StderrWriter(const Options& options);

  // A line with its end.
  void write(const std::string& line) override;
  // Takes the text whatever waits.
  void write_always(const std::string& text);
  // Says how many lines were left out, and waits until all is written, at most last_wait. A line of
  // std::cerr that has no end yet is written too.
  void drain() override;
  // For std::cerr: what it is given is written whole lines at a time.
  std::streambuf& stream_buffer() { return buffer_; }

 private:
  // What stands in one line so far is this buffer's until its end comes.
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(StderrWriter& writer) : writer_(writer) {}
    void give_rest();

   protected:
    int_type overflow(int_type c) override;
    std::streamsize xsputn(const char* text, std::streamsize size) override;

   private:
    void take(std::string_view text);
    StderrWriter& writer_;
    std::mutex mutex_;
    std::string line_;
  };

  std::string remark();  // on what was left out, a line or nothing

  const Options options_;
  std::mutex mutex_;
  BackgroundWriter writer_;
  int64_t left_out_ = 0;  // lines since the last one that was taken
  Buffer buffer_{*this};
};

// From now on this process's log lines and std::cerr go through a StderrWriter, until it ends
// (end_process() waits for the last ones) or becomes another program. Again: nothing. Call it
// before any other thread is started.
void write_stderr_in_background();

}  // namespace retort::launch
