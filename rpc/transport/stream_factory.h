// Makes streams of connected sockets: plain ones, or such under TLS with the run's secret, whose
// large transfers have threads of their own.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <utility>

#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

class TlsContext;
class TlsThreads;

class StreamFactory {
 public:
  // No `tls`: plain streams. No `threads`: all of TLS is done on the loop thread, as suits
  // connections that carry small frames alone.
  explicit StreamFactory(std::shared_ptr<TlsContext> tls = nullptr,
                         std::shared_ptr<TlsThreads> threads = nullptr)
      : tls_(std::move(tls)), threads_(std::move(threads)) {}

  std::shared_ptr<Stream> accepted(boost::asio::ip::tcp::socket socket) const;
  std::shared_ptr<Stream> connected(boost::asio::ip::tcp::socket socket) const;

 private:
  std::shared_ptr<TlsContext> tls_;
  std::shared_ptr<TlsThreads> threads_;
};

}  // namespace retort::rpc::transport
