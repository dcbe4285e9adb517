// A connection whose other end is a text: it says those bytes and then closes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <string>
#include <string_view>

#include "rpc/transport/proof.h"
#include "rpc/transport/stream.h"

namespace retort::fuzz {

class MemoryStream final : public rpc::transport::Stream {
 public:
  // Transfers move at most `piece` bytes (> 0). `incoming` outlives the stream.
  MemoryStream(boost::asio::io_context& io, std::string_view incoming, size_t piece)
      : io_(io), incoming_(incoming), piece_(piece) {}

  void start(Handler handler) override;
  void read_some(rpc::transport::MutableBuffers to, TransferHandler handler) override;
  void write_some(rpc::transport::ConstBuffers from, TransferHandler handler) override;
  void close() override { closed_ = true; }
  std::string channel_binding() const override { return {}; }
  Endpoint local_endpoint() const override;
  Endpoint remote_endpoint() const override;

  const std::string& written() const { return written_; }
  // The ends as the other side sees them.
  static rpc::transport::ConnectionFacts facts_over_there();

 private:
  void finish(TransferHandler handler, size_t bytes, bool at_end);

  boost::asio::io_context& io_;
  std::string_view incoming_;
  const size_t piece_;
  std::string written_;
  bool closed_ = false;
};

}  // namespace retort::fuzz
