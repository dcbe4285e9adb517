#include "rpc/transport/dial.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <random>
#include <utility>

#include "rpc/transport/open_socket.h"
#include "rpc/transport/port_number.h"

namespace retort::rpc::transport {
namespace {

using boost::system::error_code;
using tcp = boost::asio::ip::tcp;

constexpr std::chrono::milliseconds kLongestPause{500};

}  // namespace

bool may_pass(const Error& error) {
  return error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout ||
         error.code() == ErrorCode::kResourceExhausted;
}

bool is_somebody_else(const Error& error) {
  return error.code() == ErrorCode::kUnauthenticated || error.code() == ErrorCode::kCorrupt;
}

std::chrono::milliseconds with_jitter(std::chrono::milliseconds pause) {
  thread_local std::minstd_rand generator{std::random_device{}()};
  std::uniform_int_distribution<int64_t> part(pause.count() / 2, pause.count());
  return std::chrono::milliseconds(part(generator));
}

std::chrono::milliseconds RetryPause::next() {
  const auto pause = with_jitter(pause_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  return pause;
}

Dial::Dial(boost::asio::io_context& io, const Identity& identity, StreamFactory streams,
           const SocketOptions& sockets, PeerPort peer)
    : identity_(identity),
      streams_(std::move(streams)),
      socket_options_(sockets),
      peer_(std::move(peer)),
      resolver_(io),
      socket_(io),
      timer_(io),
      deadline_(Deadline::Clock::now()) {}

void Dial::start(Deadline deadline, Handshake::Done done) {
  done_ = std::move(done);
  deadline_ = deadline;
  timer_.expires_at(deadline.time());
  timer_.async_wait([self = shared_from_this()](const error_code& code) {
    if (!code)
      self->fail(Refusal::kTimeout, Error(ErrorCode::kTimeout, "no connection by the deadline"));
  });

  // A numeric address needs no resolver. The resolver also says what is wrong with a port.
  error_code not_numeric;
  const auto address = boost::asio::ip::make_address(peer_.host, not_numeric);
  const uint16_t port = port_number(peer_.port).value_or(0);
  if (!not_numeric && port != 0)
    return connect_to(tcp::resolver::results_type::create({address, port}, peer_.host, peer_.port));
  resolver_.async_resolve(
      peer_.host, peer_.port,
      [self = shared_from_this()](const error_code& code, tcp::resolver::results_type results) {
        if (!self->done_) return;
        if (!code) return self->connect_to(std::move(results));
        self->fail(Refusal::kClosed, Error(ErrorCode::kPeerLost,
                                           "the host name does not resolve: " + code.message()));
      });
}

void Dial::connect_to(tcp::resolver::results_type endpoints) {
  endpoints_ = std::move(endpoints);
  next_endpoint_ = endpoints_.begin();
  connect_next(boost::asio::error::host_not_found);
}

void Dial::connect_next(const error_code& before) {
  if (next_endpoint_ == endpoints_.end())
    return fail(Refusal::kClosed, Error(ErrorCode::kPeerLost, before.message()),
                before == boost::asio::error::connection_refused);

  const tcp::endpoint endpoint = (next_endpoint_++)->endpoint();
  const auto on_end = [self = shared_from_this()](const error_code& code) {
    if (!self->done_) return;
    if (!code) return self->prove();
    error_code ignored;
    self->socket_.close(ignored);
    self->connect_next(code);
  };
  const error_code code = open_socket(socket_, endpoint.protocol());
  if (!code) return socket_.async_connect(endpoint, on_end);
  // A socket that cannot be opened ends from the queue, as one does that cannot connect.
  boost::asio::post(timer_.get_executor(), [on_end, code] { on_end(code); });
}

void Dial::prove() {
  apply(socket_options_, socket_);
  auto& io = static_cast<boost::asio::io_context&>(timer_.get_executor().context());
  handshake_ = std::make_shared<ClientHandshake>(io, streams_.connected(std::move(socket_)),
                                                 identity_, peer_.target);
  handshake_->start(deadline_, [self = shared_from_this()](HandshakeResult result) {
    self->finish(std::move(result));
  });
}

void Dial::abort(const Error& error) { fail(Refusal::kClosed, error); }

void Dial::fail(Refusal refusal, const Error& error, bool nobody_listens) {
  HandshakeResult result;
  result.nobody_listens = nobody_listens;
  result.refusal = refusal;
  result.error = error.with("address", peer_.host + ":" + peer_.port);
  finish(std::move(result));
}

void Dial::finish(HandshakeResult result) {
  // The deadline, an error, the handshake and abort() may each end the dial; the first one counts.
  const auto done = std::exchange(done_, nullptr);
  if (!done) return;
  timer_.cancel();
  resolver_.cancel();
  error_code ignored;
  socket_.close(ignored);
  if (const auto handshake = std::exchange(handshake_, nullptr)) handshake->abort(Refusal::kClosed);
  if (result.error) result.error = result.error->with("peer", peer_.target.name);
  done(std::move(result));
}

}  // namespace retort::rpc::transport
