// A stream that is a TCP socket and nothing more.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>

#include "rpc/transport/stream.h"

namespace retort::rpc::transport {

class PlainStream final : public Stream {
 public:
  // `socket` is connected.
  explicit PlainStream(boost::asio::ip::tcp::socket socket);

  void start(Handler handler) override;
  void read_some(MutableBuffers to, TransferHandler handler) override;
  void write_some(ConstBuffers from, TransferHandler handler) override;
  void close() override;
  std::string channel_binding() const override { return {}; }
  Endpoint local_endpoint() const override { return local_; }
  Endpoint remote_endpoint() const override { return remote_; }

 private:
  boost::asio::ip::tcp::socket socket_;
  Endpoint local_, remote_;
};

}  // namespace retort::rpc::transport
