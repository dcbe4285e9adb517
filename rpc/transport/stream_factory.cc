#include "rpc/transport/stream_factory.h"

#include <utility>

#include "rpc/transport/plain_stream.h"
#include "rpc/transport/tls_stream.h"

namespace retort::rpc::transport {

std::shared_ptr<Stream> StreamFactory::accepted(boost::asio::ip::tcp::socket socket) const {
  if (tls_) return std::make_shared<TlsStream>(std::move(socket), tls_, TlsStream::Side::kServer);
  return std::make_shared<PlainStream>(std::move(socket));
}

std::shared_ptr<Stream> StreamFactory::connected(boost::asio::ip::tcp::socket socket) const {
  if (tls_) return std::make_shared<TlsStream>(std::move(socket), tls_, TlsStream::Side::kClient);
  return std::make_shared<PlainStream>(std::move(socket));
}

}  // namespace retort::rpc::transport
