// A proved connection that carries the frames of store_frames.h, either way. Both ends use it.
//
// Errors: on_end says once how it ended: kPeerLost, or kCorrupt for a frame that cannot be. A
//   length is compared with the limit before memory is allocated for it.
// Threads: the loop thread. Handlers never run inside send().
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "rpc/rendezvous/store_frames.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::rendezvous {

class FrameConnection : public std::enable_shared_from_this<FrameConnection> {
 public:
  // An Error that it throws ends the connection.
  using OnFrame = std::function<void(std::string_view content)>;
  using OnEnd = std::function<void(const Error&)>;

  FrameConnection(boost::asio::io_context& io, std::shared_ptr<transport::Stream> stream,
                  const StoreLimits& limits);

  // The handlers hold no reference to this object; neither is called after close().
  void start(OnFrame on_frame, OnEnd on_end);
  // Queues a frame (frame_of()). Ends the connection if too many bytes pile up.
  void send(std::string frame);
  void close();

 private:
  void read_length();
  void read_content();
  void on_content();
  void write_next();
  void end(const Error& error);

  boost::asio::io_context& io_;
  const std::shared_ptr<transport::Stream> stream_;
  const StoreLimits limits_;
  OnFrame on_frame_;
  OnEnd on_end_;
  uint32_t length_ = 0;
  std::string content_;
  std::deque<std::string> unsent_;
  size_t unsent_bytes_ = 0;
  bool writing_ = false;
  bool closed_ = false;
};

}  // namespace retort::rpc::rendezvous
