// A proved connection that carries length-prefixed frames (rpc/detail/frames.h). Used on the loop
// thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "rpc/detail/frames.h"
#include "rpc/transport/stream.h"

namespace retort::rpc::detail {

class ControlSocket : public std::enable_shared_from_this<ControlSocket> {
 public:
  using OnFrame = std::function<void(FrameType, std::string_view body)>;
  using OnError = std::function<void(const Error&)>;

  ControlSocket(boost::asio::io_context& io, std::shared_ptr<transport::Stream> stream);

  // Calls on_frame for every frame and on_error once: kPeerLost when the connection ends, kCorrupt
  // for a frame longer than allowed, kResourceExhausted for one that there is no memory for.
  // Neither is called after close().
  void start(OnFrame on_frame, OnError on_error);
  // Queues a frame (frame_bytes()). A peer that lets too many pile up is an error of the
  // connection.
  void send(std::string bytes);
  // Stops reading now and closes when everything queued is written, or after half a second.
  void close_after_flush();
  void close();

 private:
  void read_header();
  void read_body(uint32_t length);
  void take_frame();
  void write_next();
  void fail(const Error& error);

  boost::asio::io_context& io_;
  const std::shared_ptr<transport::Stream> stream_;
  boost::asio::steady_timer flush_timer_;
  OnFrame on_frame_;
  OnError on_error_;
  uint32_t header_ = 0;
  std::string body_;
  std::deque<std::string> queue_;
  bool writing_ = false, closing_ = false, closed_ = false;
};

}  // namespace retort::rpc::detail
