// A proved connection that carries frames, either way: their length (4 bytes, little-endian,
// without itself), then their content. Both ends of the run's store (rpc/rendezvous) and of the
// supervision (rpc/supervision) use it.
//
// Errors: on_end says once how it ended: kPeerLost, kCorrupt for a frame that cannot be, or
//   kResourceExhausted for one that there is no memory for. A length is compared with the limit
//   before memory is allocated for it.
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
#include "rpc/transport/stream.h"

namespace retort::rpc::launcher_port {

struct FrameLimits {
  size_t max_frame_bytes = 0;   // compared before memory is allocated
  size_t max_unsent_bytes = 0;  // of frames that the other side does not read
};

// The content with its length in front. The caller has compared it with max_frame_bytes.
std::string with_length(std::string_view content);

class FrameConnection : public std::enable_shared_from_this<FrameConnection> {
 public:
  // An Error that it throws ends the connection, and so does memory that is not there.
  using OnFrame = std::function<void(std::string_view content)>;
  using OnEnd = std::function<void(const Error&)>;

  FrameConnection(boost::asio::io_context& io, std::shared_ptr<transport::Stream> stream,
                  const FrameLimits& limits);

  // The handlers hold no reference to this object; neither is called after close().
  void start(OnFrame on_frame, OnEnd on_end);
  // Queues a frame, its length included (with_length()). Ends the connection if too many bytes pile
  // up.
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
  const FrameLimits limits_;
  OnFrame on_frame_;
  OnEnd on_end_;
  uint32_t length_ = 0;
  std::string content_;
  std::deque<std::string> unsent_;
  size_t unsent_bytes_ = 0;
  bool writing_ = false;
  bool closed_ = false;
};

}  // namespace retort::rpc::launcher_port
