#include "http/detail/connection.h"

#include <sys/socket.h>

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/ssl/error.hpp>
#include <cerrno>
#include <utility>

namespace retort::http::detail {

namespace asio = boost::asio;

Connection::Connection(asio::io_context& io, const Url& url, asio::ssl::context* tls)
    : host_(url.host), port_(url.port), resolver_(io), socket_(io) {
  if (tls == nullptr) return;
  tls_.emplace(socket_, *tls);
  expect_server(*tls_, host_, certificate_problem_);
}

void Connection::open(Handler handler) {
  // An address needs no resolver, which would wait for a thread.
  Code no_address;
  const auto address = asio::ip::make_address(host_, no_address);
  const auto port = static_cast<unsigned short>(std::stoi(port_));
  if (!no_address) return connect({Tcp::endpoint(address, port)}, std::move(handler));

  resolver_.async_resolve(host_, port_,
                          [self = shared_from_this(), handler = std::move(handler)](
                              const Code& code, const Tcp::resolver::results_type& found) {
                            if (code) return handler(code);
                            if (self->closed_) return handler(asio::error::operation_aborted);
                            self->connect({found.begin(), found.end()}, handler);
                          });
}

void Connection::connect(std::vector<Tcp::endpoint> endpoints, Handler handler) {
  doing_ = "connecting";
  const auto shared = std::make_shared<const std::vector<Tcp::endpoint>>(std::move(endpoints));
  asio::async_connect(socket_, shared->begin(), shared->end(),
                      [self = shared_from_this(), shared, handler = std::move(handler)](
                          const Code& code, std::vector<Tcp::endpoint>::const_iterator) {
                        if (code) return handler(code);
                        self->connected(handler);
                      });
}

void Connection::connected(const Handler& handler) {
  if (closed_) return handler(asio::error::operation_aborted);
  Code ignored;
  socket_.set_option(Tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);  // for long answers
  if (!tls_) {
    open_ = true;
    return handler({});
  }

  doing_ = "the TLS handshake";
  tls_->async_handshake(asio::ssl::stream_base::client,
                        [self = shared_from_this(), handler](const Code& code) {
                          self->open_ = !code;
                          handler(code);
                        });
}

Error Connection::open_error(const Code& code) const {
  if (!certificate_problem_.empty())
    return Error(ErrorCode::kUnauthenticated, doing_ + ": " + certificate_problem_);
  if (code.category() == asio::error::get_ssl_category())
    return Error(ErrorCode::kCorrupt,
                 doing_ + ": " + code.message() + "; does the server speak TLS at this port?");
  return Error(code_of_network(code),
               doing_ + ": " + code.message() + "; is the service running, and this its address?");
}

void Connection::read_some(asio::mutable_buffer to, TransferHandler handler) {
  const auto done = [self = shared_from_this(), handler = std::move(handler)](
                        const Code& code, size_t bytes) { handler(code, bytes); };
  if (tls_)
    tls_->async_read_some(to, done);
  else
    socket_.async_read_some(to, done);
}

void Connection::write_some(const std::vector<asio::const_buffer>& from, TransferHandler handler) {
  const auto done = [self = shared_from_this(), handler = std::move(handler)](
                        const Code& code, size_t bytes) { handler(code, bytes); };
  if (tls_)
    tls_->async_write_some(from, done);
  else
    socket_.async_write_some(from, done);
}

void Connection::close() {
  open_ = false;
  closed_ = true;
  Code ignored;
  resolver_.cancel();
  socket_.close(ignored);
}

bool Connection::is_quiet() {
  if (!open_) return false;
  // TLS may have taken bytes from the socket that nobody has read.
  if (tls_) {
    SSL* tls = tls_->native_handle();
    if (SSL_pending(tls) > 0 || BIO_pending(SSL_get_rbio(tls)) > 0) return false;
  }
  char byte = 0;
  const ssize_t read = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

ErrorCode code_of_network(const boost::system::error_code& code) {
  const bool full = code == boost::system::errc::too_many_files_open ||
                    code == boost::system::errc::too_many_files_open_in_system;
  return full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable;
}

}  // namespace retort::http::detail
