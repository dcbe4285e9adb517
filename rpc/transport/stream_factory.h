// Makes streams of connected sockets: plain ones, or such under TLS with the run's secret.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>

#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

class TlsContext;

class StreamFactory {
 public:
  // Null: plain streams.
  explicit StreamFactory(std::shared_ptr<TlsContext> tls = nullptr) : tls_(std::move(tls)) {}

  std::shared_ptr<Stream> accepted(boost::asio::ip::tcp::socket socket) const;
  std::shared_ptr<Stream> connected(boost::asio::ip::tcp::socket socket) const;

 private:
  std::shared_ptr<TlsContext> tls_;
};

}  // namespace retort::rpc::transport
