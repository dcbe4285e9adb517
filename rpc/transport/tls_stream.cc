#include "rpc/transport/tls_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
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

}  // namespace

TlsStream::TlsStream(tcp::socket socket, std::shared_ptr<TlsContext> context, Side side)
    : socket_(std::move(socket)), context_(std::move(context)), ssl_(SSL_new(context_->native())) {
  error_code ignored;
  local_ = socket_.local_endpoint(ignored);
  remote_ = socket_.remote_endpoint(ignored);
  socket_.native_non_blocking(true, ignored);
  RETORT_CHECK(ssl_ != nullptr && SSL_set_fd(ssl_, socket_.native_handle()) == 1);
  if (side == Side::kClient)
    SSL_set_connect_state(ssl_);
  else
    SSL_set_accept_state(ssl_);
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

TlsStream::Outcome TlsStream::try_handshake() { return outcome_of(SSL_do_handshake(ssl_), 0); }

void TlsStream::start(Handler handler) {
  attempt([this] { return try_handshake(); },
          [handler = std::move(handler)](const error_code& code, size_t) { handler(code); });
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
  const bool exported =
      SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
                                 kLabel, sizeof kLabel - 1, nullptr, 0, 0) == 1;
  RETORT_CHECK(exported) << "a TLS connection that is not ready has no binding";
  return bytes;
}

}  // namespace retort::rpc::transport
