#include "rpc/transport/tls_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "rpc/transport/key_schedule.h"

namespace retort::rpc::transport {
namespace {

using boost::system::error_code;
using tcp = boost::asio::ip::tcp;
constexpr size_t kRecordBytes = 16 << 10;
constexpr size_t kMaxTlsBytes = 1 << 20;  // of one transfer: 1.5 ms of a core
// Up to here a transfer is done on the loop, two records in some 40 us, because a change of thread
// and back would take as long.
constexpr size_t kSmallTransferBytes = 2 * kRecordBytes;
constexpr size_t kSmallPieceBytes = 4 << 10;

// RFC 8446, 5.1 and 4: a record's type, version and length, then a handshake message's type and
// length.
constexpr size_t kRecordHeadBytes = 5, kFirstBytes = kRecordHeadBytes + 4;
constexpr unsigned char kHandshakeRecord = 22, kClientHelloMessage = 1;
using FirstBytes = std::array<unsigned char, kFirstBytes>;

error_code not_tls() {
  return boost::system::errc::make_error_code(boost::system::errc::protocol_error);
}

// The size of a record that holds one ClientHello and nothing else, of a size that it may have; 0
// for anything else.
size_t hello_record_bytes(const FirstBytes& head) {
  const size_t record = size_t{head[3]} << 8 | head[4];
  const size_t message = size_t{head[6]} << 16 | size_t{head[7]} << 8 | head[8];
  const bool fits = head[0] == kHandshakeRecord && head[1] == 3 && head[5] == kClientHelloMessage &&
                    record == message + 4 && record <= kMaxClientHelloBytes;
  return fits ? kRecordHeadBytes + record : 0;
}

}  // namespace

TlsStream::TlsStream(tcp::socket socket, std::shared_ptr<TlsContext> context, Side side)
    : socket_(std::move(socket)), context_(std::move(context)), side_(side) {
  error_code ignored;
  local_ = socket_.local_endpoint(ignored);
  remote_ = socket_.remote_endpoint(ignored);
  socket_.native_non_blocking(true, ignored);
}

bool TlsStream::make_ssl() {
  ssl_ = SSL_new(context_->native());
  if (ssl_ == nullptr || SSL_set_fd(ssl_, socket_.native_handle()) != 1) return false;
  if (side_ == Side::kClient)
    SSL_set_connect_state(ssl_);
  else
    SSL_set_accept_state(ssl_);
  return true;
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

TlsStream::Outcome TlsStream::outcome_of(int result, size_t bytes) {
  // Bytes that were moved are reported first; an error behind them shows at the next call.
  if (result == 1 || bytes > 0) return {.bytes = bytes};
  const int saved_errno = errno;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ: return {.wait = true, .event = tcp::socket::wait_read};
    case SSL_ERROR_WANT_WRITE: return {.wait = true, .event = tcp::socket::wait_write};
    case SSL_ERROR_ZERO_RETURN: return {.code = boost::asio::error::eof};
    case SSL_ERROR_SYSCALL:
      return {.code = saved_errno != 0 ? error_code(saved_errno, boost::system::system_category())
                                       : error_code(boost::asio::error::eof)};
    default: break;
  }
  const auto why = ERR_get_error();
  return {.code = why != 0
                      ? error_code(static_cast<int>(why), boost::asio::error::get_ssl_category())
                      : error_code(boost::asio::error::connection_reset)};
}

void TlsStream::attempt(Transfer transfer) {
  // Another thread has OpenSSL's object, so the transfer the other way waits until it is back.
  if (is_away_) {
    waiting_ = std::move(transfer);
    return;
  }
  if (closed_) return finish(std::move(transfer), {.code = boost::asio::error::operation_aborted});

  // Without threads, or with none that started, the loop also does what is large.
  TlsThreads* const threads = context_->threads();
  const bool large = threads == nullptr || is_large(transfer);
  if (large && threads != nullptr && threads->start())
    return attempt_elsewhere(std::move(transfer));
  const Outcome outcome = try_once(transfer, large ? kMaxTlsBytes : kSmallTransferBytes);
  if (outcome.wait) return wait_for(outcome.event, std::move(transfer));
  finish(std::move(transfer), outcome);
}

// True if more than a small transfer can be done now. After a read that took all there was, the
// socket knows how much there is; before it, OpenSSL may hold a quarter of a MiB.
bool TlsStream::is_large(const Transfer& transfer) const {
  switch (transfer.kind) {
    case Transfer::Kind::kHandshake: return false;
    case Transfer::Kind::kWrite: return transfer.from.front().size() > kSmallTransferBytes;
    case Transfer::Kind::kRead: break;
  }
  if (boost::asio::buffer_size(transfer.to) <= kSmallTransferBytes) return false;
  error_code ignored;  // a socket that is dead shows that when it is read
  return !is_drained_ || socket_.available(ignored) > kSmallTransferBytes;
}

// The thread has OpenSSL's object to itself until it has posted back. The loop, which ends when it
// has nothing left to do, is held until then.
void TlsStream::attempt_elsewhere(Transfer transfer) {
  // A socket that took the last write only in part is full: no thread need find that out again.
  if (transfer.kind == Transfer::Kind::kWrite && std::exchange(is_blocked_, false))
    return wait_for(tcp::socket::wait_write, std::move(transfer));

  is_away_ = true;
  auto held = boost::asio::make_work_guard(socket_.get_executor());
  context_->threads()->post([self = shared_from_this(), held = std::move(held),
                             transfer = std::move(transfer)]() mutable {
    const Outcome outcome = self->try_once(transfer, kMaxTlsBytes);
    const auto loop = held.get_executor();
    boost::asio::post(loop, [self = std::move(self), held = std::move(held), outcome,
                             transfer = std::move(transfer)]() mutable {
      self->come_back(std::move(transfer), outcome);
    });
  });
}

// The transfer that waited goes first: it has waited longer than what the handler may begin.
void TlsStream::come_back(Transfer transfer, Outcome outcome) {
  is_away_ = false;
  if (closed_) close();
  if (auto other = std::exchange(waiting_, std::nullopt)) attempt(std::move(*other));

  if (closed_) outcome = {.code = boost::asio::error::operation_aborted};
  if (outcome.wait) return wait_for(outcome.event, std::move(transfer));
  transfer.handler(outcome.code, outcome.bytes);
}

void TlsStream::wait_for(tcp::socket::wait_type event, Transfer transfer) {
  socket_.async_wait(event, [self = shared_from_this(),
                             transfer = std::move(transfer)](const error_code& code) mutable {
    if (code) return transfer.handler(code, 0);
    self->attempt(std::move(transfer));
  });
}

void TlsStream::finish(Transfer transfer, const Outcome& outcome) {
  boost::asio::post(socket_.get_executor(),
                    [self = shared_from_this(), outcome, handler = std::move(transfer.handler)] {
                      handler(outcome.code, outcome.bytes);
                    });
}

TlsStream::Outcome TlsStream::try_once(const Transfer& transfer, size_t max_bytes) {
  ERR_clear_error();
  errno = 0;
  switch (transfer.kind) {
    case Transfer::Kind::kRead: return try_read(transfer.to, max_bytes);
    case Transfer::Kind::kWrite: return try_write(transfer.from, max_bytes);
    case Transfer::Kind::kHandshake: break;
  }
  return try_handshake();
}

// A server that has read a whole ClientHello and wants more has found the secret in it: nobody else
// is asked for anything, not even for another ClientHello.
TlsStream::Outcome TlsStream::try_handshake() {
  const Outcome outcome = outcome_of(SSL_do_handshake(ssl_), 0);
  const bool is_stranger = outcome.wait && side_ == Side::kServer && !SSL_session_reused(ssl_);
  if (is_stranger) return {.code = not_tls()};
  return outcome;
}

void TlsStream::do_handshake(Handler handler) {
  if (!make_ssl())
    return boost::asio::post(socket_.get_executor(), [handler = std::move(handler)] {
      handler(boost::asio::error::no_memory);
    });
  attempt({.kind = Transfer::Kind::kHandshake,
           .handler = [handler = std::move(handler)](const error_code& code, size_t) {
             handler(code);
           }});
}

void TlsStream::start(Handler handler) {
  if (side_ == Side::kClient) return do_handshake(std::move(handler));
  await_hello(kFirstBytes, std::move(handler));
}

// The system wakes this wait when so many bytes are there, or when no more will come: nobody looks
// again at every byte of somebody who is slow.
void TlsStream::await_hello(size_t bytes, Handler handler) {
  const auto wake_at = [this](size_t wanted) {
    const int number = static_cast<int>(wanted);
    // On a socket that is dead already this fails, and the wait for it ends at once.
    [[maybe_unused]] const int ignored =
        ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &number, sizeof number);
  };
  wake_at(bytes);
  socket_.async_wait(
      tcp::socket::wait_read, [self = shared_from_this(), bytes, wake_at,
                               handler = std::move(handler)](const error_code& code) {
        if (code) return handler(code);
        if (self->closed_) return handler(boost::asio::error::operation_aborted);
        // The bytes are only looked at: OpenSSL reads them again from the socket.
        std::array<unsigned char, kRecordHeadBytes + kMaxClientHelloBytes> seen;
        const ssize_t got = ::recv(self->socket_.native_handle(), seen.data(), bytes, MSG_PEEK);
        if (got < static_cast<ssize_t>(bytes)) return handler(boost::asio::error::eof);

        FirstBytes head;
        std::copy_n(seen.begin(), head.size(), head.begin());
        const size_t whole = hello_record_bytes(head);
        if (whole == 0) return handler(not_tls());
        if (bytes < whole) return self->await_hello(whole, handler);
        wake_at(1);
        self->do_handshake(handler);
      });
}

TlsStream::Outcome TlsStream::try_read(MutableBuffers to, size_t max_bytes) {
  // OpenSSL gives one record at a time, so this goes on until the buffers are full or there is no
  // more.
  is_drained_ = false;
  size_t total = 0;
  int result = 1;
  for (const auto& buffer : to) {
    size_t filled = 0;
    while (filled < buffer.size() && total < max_bytes) {
      size_t bytes = 0;
      result = SSL_read_ex(ssl_, static_cast<char*>(buffer.data()) + filled, buffer.size() - filled,
                           &bytes);
      is_drained_ = result != 1;
      if (result != 1) return outcome_of(result, total);
      filled += bytes;
      total += bytes;
    }
  }
  return {.bytes = total};
}

void TlsStream::read_some(MutableBuffers to, TransferHandler handler) {
  attempt({.kind = Transfer::Kind::kRead, .to = to, .handler = std::move(handler)});
}

// A record for each piece would double the cost of small frames: those are put together, header and
// body.
TlsStream::Outcome TlsStream::try_write(ConstBuffers from, size_t max_bytes) {
  boost::asio::const_buffer piece = from.front();
  if (from.size() > 1 && piece.size() < kSmallPieceBytes) {
    gathered_.resize(kRecordBytes);
    piece = {gathered_.data(), boost::asio::buffer_copy(boost::asio::buffer(gathered_), from)};
  }

  size_t total = 0;
  while (total < std::min(piece.size(), max_bytes)) {
    size_t bytes = 0;
    const int result = SSL_write_ex(ssl_, static_cast<const char*>(piece.data()) + total,
                                    piece.size() - total, &bytes);
    is_blocked_ = result != 1 && total > 0;
    if (result != 1) return outcome_of(result, total);
    total += bytes;
  }
  return {.bytes = total};
}

void TlsStream::write_some(ConstBuffers from, TransferHandler handler) {
  attempt({.kind = Transfer::Kind::kWrite, .from = from, .handler = std::move(handler)});
}

// While another thread works on the descriptor it stays open: its number could become that of
// another socket.
void TlsStream::close() {
  closed_ = true;
  if (is_away_) return;
  error_code ignored;
  socket_.close(ignored);
}

// Returns bytes that follow from the keys of this very connection, which no relay can have.
std::string TlsStream::channel_binding() const {
  static constexpr char kLabel[] = "EXPORTER-retort-proof";
  std::string bytes(kKeyBytes, '\0');
  RETORT_CHECK(ssl_ != nullptr) << "a TLS connection that is not ready has no binding";
  const bool exported =
      SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
                                 kLabel, sizeof kLabel - 1, nullptr, 0, 0) == 1;
  RETORT_CHECK(exported) << "a TLS connection that is not ready has no binding";
  return bytes;
}

}  // namespace retort::rpc::transport
