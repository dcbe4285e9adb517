// A connection that carries bytes: a TCP socket, plain or under TLS. What is above it (the proof,
// the control frames, the data frames) does not know which.
//
// Use: read_some() and write_some() begin one transfer each; at most one of each kind is under way.
//   A handler runs once, later, on the loop thread, never inside the call that began the transfer.
// Memory: the buffers and the span that lists them must live until the handler runs.
// Ending: close() may be called at any time. What is under way then ends with operation_aborted;
//   after its handler nothing touches the caller's memory.
// Threads: the loop thread only.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace retort::rpc::transport {

using MutableBuffers = std::span<const boost::asio::mutable_buffer>;
using ConstBuffers = std::span<const boost::asio::const_buffer>;

class Stream {
 public:
  using TransferHandler = std::function<void(const boost::system::error_code&, size_t bytes)>;
  using Handler = std::function<void(const boost::system::error_code&)>;
  using Endpoint = boost::asio::ip::tcp::endpoint;

  virtual ~Stream() = default;
  // Makes the stream ready for use, before anything else: the handshake of TLS; nothing for a plain
  // one.
  virtual void start(Handler handler) = 0;
  virtual void read_some(MutableBuffers to, TransferHandler handler) = 0;
  virtual void write_some(ConstBuffers from, TransferHandler handler) = 0;
  virtual void close() = 0;

  // What binds a proof to this very connection: 32 bytes that both ends of a TLS connection share
  // with nobody else, once it is ready. Empty for a plain stream.
  virtual std::string channel_binding() const = 0;
  // The ends as this side sees them; unspecified once the stream is closed.
  virtual Endpoint local_endpoint() const = 0;
  virtual Endpoint remote_endpoint() const = 0;
};

// Reads or writes all of a buffer, however many transfers that takes. For small frames.
void read_all(const std::shared_ptr<Stream>& stream, boost::asio::mutable_buffer to,
              Stream::Handler handler);
void write_all(const std::shared_ptr<Stream>& stream, boost::asio::const_buffer from,
               Stream::Handler handler);

// "127.0.0.1:4000" or "[::1]:4000".
std::string to_string(const Stream::Endpoint& endpoint);

}  // namespace retort::rpc::transport
