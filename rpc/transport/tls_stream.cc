#include "rpc/transport/tls_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
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
constexpr size_t kMaxTlsBytes = 1 << 20;  // keeps one handler of the loop short
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

template <class Try>
void TlsStream::attempt(Try attempt_once, TransferHandler handler) {
  Outcome outcome{.code = boost::asio::error::operation_aborted};
  if (!closed_) {
    ERR_clear_error();
    errno = 0;
    outcome = attempt_once();
  }
  if (!outcome.wait)
    return boost::asio::post(socket_.get_executor(),
                             [self = shared_from_this(), outcome, handler = std::move(handler)] {
                               handler(outcome.code, outcome.bytes);
                             });

  socket_.async_wait(outcome.event, [self = shared_from_this(), attempt_once,
                                     handler = std::move(handler)](const error_code& code) mutable {
    if (code) return handler(code, 0);
    self->attempt(std::move(attempt_once), std::move(handler));
  });
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
  attempt([this] { return try_handshake(); },
          [handler = std::move(handler)](const error_code& code, size_t) { handler(code); });
}

void TlsStream::start(Handler handler) {
  if (side_ == Side::kClient) return do_handshake(std::move(handler));
  await_hello(kFirstBytes, std::move(handler));
}

// The system wakes this when so many bytes are there, or no more will come: nobody looks again at
// every byte of somebody who is slow.
void TlsStream::await_hello(size_t bytes, Handler handler) {
  const auto wake_at = [this](size_t wanted) {
    const int number = static_cast<int>(wanted);
    // Of a socket that is dead already the wait ends at once.
    [[maybe_unused]] const int ignored =
        ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &number, sizeof number);
  };
  wake_at(bytes);
  socket_.async_wait(
      tcp::socket::wait_read, [self = shared_from_this(), bytes, wake_at,
                               handler = std::move(handler)](const error_code& code) {
        if (code) return handler(code);
        if (self->closed_) return handler(boost::asio::error::operation_aborted);
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

TlsStream::Outcome TlsStream::try_read(MutableBuffers to) {
  size_t total = 0;
  int result = 1;
  for (const auto& buffer : to) {
    size_t filled = 0;
    while (filled < buffer.size() && total < kMaxTlsBytes) {
      size_t bytes = 0;
      result = SSL_read_ex(ssl_, static_cast<char*>(buffer.data()) + filled, buffer.size() - filled,
                           &bytes);
      if (result != 1) return outcome_of(result, total);
      filled += bytes;
      total += bytes;
    }
  }
  return {.bytes = total};
}

void TlsStream::read_some(MutableBuffers to, TransferHandler handler) {
  attempt([this, to] { return try_read(to); }, std::move(handler));
}

// A record for each piece would double the cost of small frames: those are put together, header and
// body.
TlsStream::Outcome TlsStream::try_write(ConstBuffers from) {
  boost::asio::const_buffer piece = from.front();
  if (from.size() > 1 && piece.size() < kSmallPieceBytes) {
    gathered_.resize(kRecordBytes);
    piece = {gathered_.data(), boost::asio::buffer_copy(boost::asio::buffer(gathered_), from)};
  }

  size_t total = 0;
  while (total < std::min(piece.size(), kMaxTlsBytes)) {
    size_t bytes = 0;
    const int result = SSL_write_ex(ssl_, static_cast<const char*>(piece.data()) + total,
                                    piece.size() - total, &bytes);
    if (result != 1) return outcome_of(result, total);
    total += bytes;
  }
  return {.bytes = total};
}

void TlsStream::write_some(ConstBuffers from, TransferHandler handler) {
  attempt([this, from] { return try_write(from); }, std::move(handler));
}

void TlsStream::close() {
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
}

// What a relay cannot have: bytes that follow from the keys of this very connection.
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
