#include "rpc/transport/acceptor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.h"

namespace retort::rpc::transport {
namespace {

using boost::system::error_code;
using tcp = boost::asio::ip::tcp;
constexpr std::chrono::milliseconds kAcceptPause{10};

// A flood may refuse thousands; the log gets the 1st, 2nd, 4th, ... of each kind.
bool worth_a_line(uint64_t count) { return std::has_single_bit(count); }

bool is_shortage(const error_code& code) {
  return code == boost::asio::error::no_descriptors || code == boost::asio::error::no_memory ||
         code == boost::asio::error::no_buffer_space ||
         code == boost::system::errc::too_many_files_open_in_system;
}

}  // namespace

Acceptor::Acceptor(std::shared_ptr<rpc::detail::Loop> loop, AcceptorOptions options,
                   Identity identity, StreamFactory streams, AcceptorHandlers handlers)
    : loop_(std::move(loop)),
      options_(std::move(options)),
      identity_(std::move(identity)),
      streams_(std::move(streams)),
      handlers_(std::move(handlers)),
      room_timer_(loop_->io()) {
  identity_.validate();
  policy_.find_session = handlers_.find_session;
  policy_.supervision = handlers_.on_supervision != nullptr;
  policy_.nonces = &nonces_;
  for (auto& acceptor : open_ports(loop_->io(), options_.hosts, options_.ports)) {
    addresses_.push_back(to_string(acceptor.local_endpoint()));
    ports_.push_back(
        std::make_shared<Port>(Port{std::move(acceptor), boost::asio::steady_timer(loop_->io())}));
  }
}

void Acceptor::start() {
  for (const auto& port : ports_)
    accept(port);
}

void Acceptor::accept(const std::shared_ptr<Port>& port) {
  port->acceptor.async_accept(
      [self = shared_from_this(), port](const error_code& code, tcp::socket socket) {
        if (self->closed_) return;
        if (code) return self->on_accept_error(port, code);
        self->admit(port, std::move(socket));
      });
}

// Where there is no room one connection is held and the others stay in the system's queue.
void Acceptor::admit(const std::shared_ptr<Port>& port, tcp::socket socket) {
  if (!make_room()) {
    ++counters_.held_back;
    held_back_.push_back({port, std::move(socket)});
    return;
  }
  greet(std::move(socket));
  accept(port);
}

// Without descriptors the connection stays in the system's queue, where it would make the loop
// spin: hence the pause. What is established goes on.
void Acceptor::on_accept_error(const std::shared_ptr<Port>& port, const error_code& code) {
  const uint64_t count = ++counters_.accept_errors;
  if (worth_a_line(count)) {
    RETORT_LOG(kWarning) << "accepting a connection failed: " << code.message()
                         << " errors=" << count;
  }
  if (!is_shortage(code)) return accept(port);
  evict_oldest();
  port->pause.expires_after(kAcceptPause);
  port->pause.async_wait([self = shared_from_this(), port](const error_code& stopped) {
    if (!stopped && !self->closed_) self->accept(port);
  });
}

void Acceptor::greet(tcp::socket socket) {
  ++counters_.accepted;
  apply(options_.sockets, socket);
  auto handshake = std::make_shared<ServerHandshake>(
      loop_->io(), streams_.accepted(std::move(socket)), identity_, policy_);
  const auto place =
      unproven_.insert(unproven_.end(), Unproven{handshake, Deadline::after(options_.silence)});
  handshake->start(Deadline::after(options_.proof_timeout),
                   [self = shared_from_this(), place](HandshakeResult result) {
                     self->unproven_.erase(place);
                     self->on_result(std::move(result));
                     self->resume();
                   });
}

void Acceptor::on_result(HandshakeResult result) {
  if (result.error) {
    const uint64_t count = ++counters_.refused[static_cast<size_t>(result.refusal)];
    if (!closed_ && worth_a_line(count)) {
      RETORT_LOG(kWarning) << "a connection was refused: " << result.error->what()
                           << " count=" << count;
    }
    return;
  }
  if (closed_) return result.stream->close();
  switch (result.proven.purpose) {
    case Purpose::kControl:
      ++counters_.proven_control;
      return handlers_.on_control(std::move(result.stream), result.proven);
    case Purpose::kData:
      ++counters_.proven_data;
      return handlers_.on_data(std::move(result.stream), result.proven);
    case Purpose::kSupervision:
      ++counters_.proven_supervision;
      return handlers_.on_supervision(std::move(result.stream), result.proven);
  }
}

bool Acceptor::make_room() {
  while (unproven_.size() >= options_.max_unproven) {
    const auto silent = std::find_if(unproven_.begin(), unproven_.end(), [](const Unproven& each) {
      return !each.handshake->under_way();
    });
    if (silent == unproven_.end()) return false;  // each of them ends in time, well or not
    if (!silent->may_be_silent.expired()) {
      room_timer_.expires_at(silent->may_be_silent.time());
      room_timer_.async_wait([self = shared_from_this()](const error_code& code) {
        if (!code) self->resume();
      });
      return false;
    }
    const auto handshake = silent->handshake;  // its callback takes it out of the list
    handshake->abort(Refusal::kEvicted);
  }
  return true;
}

void Acceptor::resume() {
  if (closed_) return;
  for (HeldBack& each : std::exchange(held_back_, {}))
    admit(each.port, std::move(each.socket));
}

bool Acceptor::evict_oldest() {
  if (unproven_.empty()) return false;
  const auto oldest = unproven_.front().handshake;  // its callback takes it out of the list
  oldest->abort(Refusal::kEvicted);
  return true;
}

void Acceptor::close() {
  if (std::exchange(closed_, true)) return;
  error_code ignored;
  for (const auto& port : ports_) {
    port->acceptor.close(ignored);
    port->pause.cancel();
  }
  room_timer_.cancel();
  held_back_.clear();
  while (evict_oldest()) {
  }
}

}  // namespace retort::rpc::transport
