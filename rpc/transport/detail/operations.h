// One read or one write that TensorPipe asked a connection for.
//
// A frame on the wire is a length (8 bytes, little-endian, without itself) and that many bytes. A
// read takes one frame, a write makes one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rpc/transport/detail/tensorpipe_abi.h"

namespace retort::rpc::transport {

inline constexpr size_t kFrameHeaderBytes = sizeof(uint64_t);
// In place of a length: a probe, which says that the connection lives and has no body.
inline constexpr uint64_t kProbeHeader = ~uint64_t{0};
// Of one read or write of the stream: keeps one handler of the loop short.
inline constexpr size_t kMaxTransferBytes = 4 << 20;

// What a connection's error is to TensorPipe.
class ConnectionError final : public tensorpipe::BaseError {
 public:
  explicit ConnectionError(std::string text) : text_(std::move(text)) {}
  std::string what() const override { return text_; }

 private:
  const std::string text_;
};

inline tensorpipe::Error connection_error(std::string text) {
  return tensorpipe::Error(std::make_shared<ConnectionError>(std::move(text)), "retort", 0);
}

struct ReadOperation {
  // A sized read has memory of the caller and accepts a frame of exactly that length.
  bool sized = false;
  void* data = nullptr;
  size_t length = 0;
  // Not null: the frame is an object, which is parsed.
  tensorpipe::AbstractNopHolder* object = nullptr;
  std::function<void(const tensorpipe::Error&, const void*, size_t)> on_bytes;
  std::function<void(const tensorpipe::Error&)> on_object;

  void fail(const tensorpipe::Error& error) const {
    if (object != nullptr) return on_object(error);
    on_bytes(error, data, length);
  }
};

struct WriteOperation {
  uint64_t length = 0;
  const void* data = nullptr;
  std::unique_ptr<char[]> owned;  // the bytes of an object
  std::function<void(const tensorpipe::Error&)> on_written;

  void fail(const tensorpipe::Error& error) const { on_written(error); }
};

}  // namespace retort::rpc::transport
