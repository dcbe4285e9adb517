#include "rpc/detail/connector.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <utility>

namespace retort::rpc::detail {
namespace {

using boost::system::error_code;
using tcp = boost::asio::ip::tcp;
constexpr std::chrono::milliseconds kMaxPause{500};

// What will not get better by trying again.
bool is_final(ErrorCode code) {
  return code != ErrorCode::kPeerLost && code != ErrorCode::kTimeout;
}

}  // namespace

HostPort parse_address(const std::string& address) {
  const auto colon = address.rfind(':');
  HostPort parsed;
  if (colon != std::string::npos) {
    parsed = {address.substr(0, colon), address.substr(colon + 1)};
    if (parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']')
      parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  }
  const bool digits = !parsed.port.empty() && parsed.port.size() <= 5 &&
                      std::all_of(parsed.port.begin(), parsed.port.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  if (parsed.host.empty() || !digits)
    throw Error(ErrorCode::kInvalidArgument, "an address is host:port or [ipv6]:port")
        .with("address", address);
  return parsed;
}

Connector::Connector(SessionHost& host, std::string peer, HostPort address, Deadline deadline,
                     Promise<Empty> promise)
    : host_(host),
      loop_(host.loop()),
      peer_(std::move(peer)),
      address_(std::move(address)),
      promise_(std::move(promise)),
      resolver_(loop_->io()),
      deadline_timer_(loop_->io()),
      retry_timer_(loop_->io()),
      deadline_(deadline) {}

void Connector::start() {
  deadline_timer_.expires_at(deadline_.time());
  deadline_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (code || self->finished_) return;
    const Error error =
        Error(ErrorCode::kTimeout, "could not connect by the deadline; last: " + self->last_reason_)
            .with("address", self->address_.host + ":" + self->address_.port);
    self->finish(&error);
  });
  attempt();
}

void Connector::attempt() {
  error_code not_numeric;
  const auto numeric = boost::asio::ip::make_address(address_.host, not_numeric);
  if (!not_numeric) {
    const tcp::endpoint endpoint(
        numeric, static_cast<uint16_t>(std::min(std::stoul(address_.port), 65535ul)));
    return connect_to(tcp::resolver::results_type::create(endpoint, address_.host, address_.port));
  }
  resolver_.async_resolve(
      address_.host, address_.port,
      [self = shared_from_this()](const error_code& code, tcp::resolver::results_type results) {
        if (self->finished_) return;
        if (code) return self->retry("the host name does not resolve: " + code.message());
        self->connect_to(results);
      });
}

void Connector::connect_to(const tcp::resolver::results_type& endpoints) {
  socket_.emplace(loop_->io());
  boost::asio::async_connect(
      *socket_, endpoints,
      [self = shared_from_this()](const error_code& code, const tcp::endpoint&) {
        if (self->finished_) return;
        if (code) return self->retry(code.message());
        self->on_connected();
      });
}

void Connector::on_connected() {
  auto session = std::make_shared<Session>(host_, std::move(*socket_), peer_);
  socket_.reset();
  session_ = session;
  session->on_settled([self = shared_from_this()](const Error* error) {
    if (self->finished_) return;
    if (error && !is_final(error->code())) return self->retry(error->what());
    self->finish(error);
  });
  host_.session_begins(session);
  session->start();
}

void Connector::retry(const std::string& reason) {
  last_reason_ = reason;
  retry_timer_.expires_after(pause_);
  pause_ = std::min(pause_ * 2, kMaxPause);
  retry_timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (!code && !self->finished_) self->attempt();
  });
}

void Connector::finish(const Error* error) {
  if (finished_) return;
  finished_ = true;
  deadline_timer_.cancel();
  retry_timer_.cancel();
  resolver_.cancel();
  error_code ignored;
  if (socket_) socket_->close(ignored);
  if (error) {
    if (const auto session = session_.lock(); session && !session->up()) session->fail(*error);
    promise_.set_error(std::make_exception_ptr(error->with("peer", peer_)));
  } else {
    promise_.set_value(Empty{});
  }
}

}  // namespace retort::rpc::detail
