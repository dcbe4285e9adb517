// The writing half of a connection, without its socket: writes wait here in order and become bytes.
// Threads: the loop thread. Callbacks run inside written() and fail(); they may not call back into
// this object.
#pragma once

#include <boost/asio/buffer.hpp>
#include <cstddef>
#include <deque>
#include <vector>

#include "rpc/transport/detail/operations.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

class FrameWriter {
 public:
  void push(WriteOperation write) { waiting_.push_back(std::move(write)); }
  bool idle() const { return waiting_.empty() && probe_left_ == 0; }
  // A frame without a body that the other reader passes over. Only while idle().
  void push_probe() { probe_left_ = kFrameHeaderBytes; }

  // The bytes to send next: headers and bodies of as many writes as one transfer takes. Valid until
  // written() or fail().
  ConstBuffers pieces();
  // `bytes` of them went out: calls back for every write that is complete.
  void written(size_t bytes);
  // Calls every waiting callback with `error`, in order. No transfer may be under way.
  void fail(const tensorpipe::Error& error);

 private:
  std::deque<WriteOperation> waiting_;
  size_t probe_left_ = 0;  // bytes of a probe, which go before all frames
  size_t sent_ = 0;        // of the first frame, its header included
  std::vector<boost::asio::const_buffer> pieces_;
};

}  // namespace retort::rpc::transport
