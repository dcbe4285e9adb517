// A stream under TLS 1.3. OpenSSL works on the descriptor itself: it reads far ahead, and would
// hand the records to the kernel where that can encrypt.
#pragma once

#include <openssl/types.h>

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <vector>

#include "rpc/transport/stream.h"
#include "rpc/transport/tls_context.h"

namespace retort::rpc::transport {

class TlsStream final : public Stream, public std::enable_shared_from_this<TlsStream> {
 public:
  enum class Side { kClient, kServer };

  // `socket` is connected.
  TlsStream(boost::asio::ip::tcp::socket socket, std::shared_ptr<TlsContext> context, Side side);
  ~TlsStream() override;

  void start(Handler handler) override;
  void read_some(MutableBuffers to, TransferHandler handler) override;
  void write_some(ConstBuffers from, TransferHandler handler) override;
  void close() override;
  std::string channel_binding() const override;
  Endpoint local_endpoint() const override { return local_; }
  Endpoint remote_endpoint() const override { return remote_; }

 private:
  // What OpenSSL said: how many bytes moved, what to wait for before the next try, or how it ended.
  struct Outcome {
    size_t bytes = 0;
    bool wait = false;
    boost::asio::ip::tcp::socket::wait_type event = boost::asio::ip::tcp::socket::wait_read;
    boost::system::error_code code;
  };
  Outcome outcome_of(int result, size_t bytes);
  Outcome try_handshake();
  Outcome try_read(MutableBuffers to);
  Outcome try_write(ConstBuffers from);
  // Tries, waits for the socket and tries again until there is an outcome for the handler.
  template <class Try>
  void attempt(Try attempt_once, TransferHandler handler);

  boost::asio::ip::tcp::socket socket_;
  const std::shared_ptr<TlsContext> context_;
  SSL* const ssl_;
  Endpoint local_, remote_;
  bool closed_ = false;
  std::vector<char> gathered_;  // small pieces that go into one record
};

}  // namespace retort::rpc::transport
