// The reading half of a connection, without its socket: reads wait here in order, bytes come in,
// and each read is served with the frame that is its own.
//
//   socket -> room() ... arrived(n) -> read-ahead buffer, or straight into the first read's memory
//   serve() -> one callback, when the first read's frame is complete
//
// Errors: serve() says kCorrupt for a frame that the read at the head cannot accept, with
//   problem(); that read stays in the queue. Nothing is allocated for a length that was not
//   checked.
// Threads: the loop thread. Callbacks run inside serve() and fail(); they may not call back into
//   this object.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "rpc/transport/detail/operations.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

struct FrameLimits {
  // A frame whose length its reader does not know: bytes of a channel, or an object.
  size_t max_unsized_bytes = 4 << 20;
  // The first frame of a connection that a listener hands over.
  size_t max_first_frame_bytes = 4 << 10;
};

class FrameReader {
 public:
  enum class Progress { kServed, kNeedsReads, kNeedsBytes, kCorrupt };
  enum class FirstFrame { kIncomplete, kComplete, kCorrupt };

  explicit FrameReader(const FrameLimits& limits);

  void push(ReadOperation read) { waiting_.push_back(std::move(read)); }
  bool idle() const { return waiting_.empty(); }
  size_t buffered() const { return end_ - begin_; }
  // A frame is here that no read has asked for: what follows it cannot be seen.
  bool stalled() const { return waiting_.empty() && buffered() >= kFrameHeaderBytes; }

  // Serves the read at the head if all its bytes are there.
  Progress serve();
  const char* problem() const { return problem_; }

  // Where the next bytes of the socket go. Empty when the buffer is full and waits for reads. May
  // be called only when no transfer is under way; valid until arrived().
  MutableBuffers room();
  void arrived(size_t bytes);

  // TensorPipe's listener ends for good when the first object of any of its connections fails. So a
  // connection waits until first_frame() is complete, and with protect_first_object() the callback
  // of that first read is dropped, never called with an error.
  FirstFrame first_frame() const;
  void protect_first_object() { first_object_protected_ = true; }

  // Calls every waiting callback with `error`, in order. No transfer may be under way.
  void fail(const tensorpipe::Error& error);

 private:
  void skip_probes();
  bool begin_body();
  Progress finish_read(const char* body);

  const FrameLimits limits_;
  std::deque<ReadOperation> waiting_;
  std::vector<char> buffer_;  // [begin_, end_) is not consumed
  size_t begin_ = 0, end_ = 0;

  // The frame that is being read, for the read at the head.
  bool in_body_ = false;
  size_t body_bytes_ = 0, body_have_ = 0;
  std::unique_ptr<char[]> owned_body_;  // of an unsized read that did not fit into the buffer

  size_t direct_bytes_ = 0;  // the part of the transfer under way that goes into the body
  std::array<boost::asio::mutable_buffer, 2> room_;
  const char* problem_ = "";
  bool first_object_protected_ = false;
};

}  // namespace retort::rpc::transport
