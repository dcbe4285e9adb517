// A stream under TLS 1.3. OpenSSL works on the descriptor itself: it reads far ahead, and would
// hand the records to the kernel where that can encrypt.
//
// Strangers: a server looks at the first bytes while they are in the socket. OpenSSL's object, and
//   the buffer that it reads into, are made when a whole ClientHello of at most
//   kMaxClientHelloBytes is there, and go away at once if that does not know the run's secret.
#pragma once

#include <openssl/types.h>

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <vector>

#include "rpc/transport/stream.h"
#include "rpc/transport/tls_context.h"

namespace retort::rpc::transport {

// OpenSSL's own is a few hundred bytes long.
inline constexpr size_t kMaxClientHelloBytes = 4 << 10;

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
  bool make_ssl();  // false: there is no memory for it
  // Of a server, before there is an object of OpenSSL's: waits until `bytes` are in the socket.
  void await_hello(size_t bytes, Handler handler);
  void do_handshake(Handler handler);
  Outcome try_handshake();
  Outcome try_read(MutableBuffers to);
  Outcome try_write(ConstBuffers from);
  // Tries, waits for the socket and tries again until there is an outcome for the handler.
  template <class Try>
  void attempt(Try attempt_once, TransferHandler handler);

  boost::asio::ip::tcp::socket socket_;
  const std::shared_ptr<TlsContext> context_;
  const Side side_;
  SSL* ssl_ = nullptr;
  Endpoint local_, remote_;
  bool closed_ = false;
  std::vector<char> gathered_;  // small pieces that go into one record
};

}  // namespace retort::rpc::transport
