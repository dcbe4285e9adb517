// A stream under TLS 1.3. OpenSSL works on the descriptor itself: it reads far ahead, and would
// hand the records to the kernel where that can encrypt.
//
// Threads: waiting for the socket and small transfers are the loop thread's. A large transfer is
//   done on one of the context's threads, if it has any, and its handler comes back to the loop.
//   Meanwhile the object of OpenSSL is that thread's alone: a transfer the other way waits, and so
//   does close(), for its turn among those of the other streams and the time of one (1 MiB).
//   Nothing waits there: OpenSSL moves what the socket takes or has.
// Strangers: a server looks at the first bytes while they are in the socket. OpenSSL's object, and
//   the buffer that it reads into, are made when a whole ClientHello of at most
//   kMaxClientHelloBytes is there, and go away at once if that does not know the run's secret. A
//   handshake and a proof are small transfers: no other thread works for who has proved nothing.
#pragma once

#include <openssl/types.h>

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
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
  // A server calls this before there is an object of OpenSSL's: waits until `bytes` are in the
  // socket.
  void await_hello(size_t bytes, Handler handler);
  void do_handshake(Handler handler);
  Outcome try_handshake();
  Outcome try_read(MutableBuffers to, size_t max_bytes);
  Outcome try_write(ConstBuffers from, size_t max_bytes);

  // One call of do_handshake(), read_some() or write_some(), until its handler is told.
  struct Transfer {
    enum class Kind { kHandshake, kRead, kWrite } kind;
    MutableBuffers to = {};
    ConstBuffers from = {};
    TransferHandler handler;
  };
  // Tries, waits for the socket and tries again until there is an outcome for the handler.
  void attempt(Transfer transfer);
  bool is_large(const Transfer& transfer) const;
  void attempt_elsewhere(Transfer transfer);
  void come_back(Transfer transfer, Outcome outcome);
  Outcome try_once(const Transfer& transfer, size_t max_bytes);
  void wait_for(boost::asio::ip::tcp::socket::wait_type event, Transfer transfer);
  void finish(Transfer transfer, const Outcome& outcome);  // later

  boost::asio::ip::tcp::socket socket_;
  const std::shared_ptr<TlsContext> context_;
  const Side side_;
  Endpoint local_, remote_;
  bool closed_ = false;
  bool is_away_ = false;             // a large transfer is under way on another thread
  std::optional<Transfer> waiting_;  // the one the other way, until that has come back

  // These belong to whoever does a transfer: the loop thread, or while is_away_ the other one.
  SSL* ssl_ = nullptr;
  std::vector<char> gathered_;  // small pieces that go into one record
  bool is_drained_ = false;     // the last read took all that was here
  bool is_blocked_ = false;     // the socket took the last write in part
};

}  // namespace retort::rpc::transport
