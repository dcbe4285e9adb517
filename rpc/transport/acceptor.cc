#include "rpc/transport/acceptor.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
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

// Accepts and sets close-on-exec in one call, so that no program that is started meanwhile inherits
// the connection.
error_code accept_one(tcp::acceptor& acceptor, tcp::socket& socket) {
  const int fd =
      ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return {errno, boost::system::system_category()};
  error_code code;
  const auto protocol = acceptor.local_endpoint(code).protocol();
  if (!code) socket.assign(protocol, fd, code);
  if (code) ::close(fd);
  return code;
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
  port->acceptor.async_wait(tcp::acceptor::wait_read,
                            [self = shared_from_this(), port](const error_code& code) {
                              if (self->closed_) return;
                              if (code) return self->on_accept_error(port, code);
                              self->take(port);
                            });
}

void Acceptor::take(const std::shared_ptr<Port>& port) {
  tcp::socket socket(loop_->io());
  const error_code code = accept_one(port->acceptor, socket);
  // Neither is an error: the connection has gone again, or a signal came.
  if (code == boost::asio::error::would_block || code == boost::asio::error::interrupted)
    return accept(port);
  if (code) return on_accept_error(port, code);
  port->errors_in_a_row = 0;
  admit(port, std::move(socket));
}

// Without room the new connection is held back, and those behind it stay in the system's queue.
void Acceptor::admit(const std::shared_ptr<Port>& port, tcp::socket socket) {
  if (!make_room()) {
    ++counters_.held_back;
    held_back_.push_back({port, std::move(socket)});
    return;
  }
  try {
    greet(std::move(socket));
  } catch (const std::bad_alloc&) {
    return on_accept_error(port, boost::asio::error::no_memory);
  }
  accept(port);
}

// Without descriptors the connection stays in the system's queue, where it would make the loop
// spin, and so would any error that stays: hence the pause. What is established goes on.
void Acceptor::on_accept_error(const std::shared_ptr<Port>& port, const error_code& code) {
  const uint64_t count = ++counters_.accept_errors;
  if (worth_a_line(count)) {
    RETORT_LOG(kWarning) << "accepting a connection failed: " << code.message()
                         << " errors=" << count;
  }
  if (is_shortage(code))
    evict_oldest();
  else if (++port->errors_in_a_row == 1)
    return accept(port);
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
  // The list is in the order of arrival, so that its front is the oldest.
  const auto place = unproven_.insert(unproven_.end(), Unproven{handshake, Deadline::Clock::now()});
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
  // A connection may be proved just when the acceptor has closed; then nobody takes it.
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

// Returns until when an unproven connection keeps its place if others wait. One whose proof is
// under way gets longer; a silent one gets a fifth if most are silent.
Deadline::Clock::time_point Acceptor::end_of(const Unproven& each, bool most_are_silent) const {
  if (each.handshake->under_way()) return each.since + 2 * options_.silence;
  return each.since + (most_are_silent ? options_.silence / 5 : options_.silence);
}

bool Acceptor::make_room() {
  while (unproven_.size() >= options_.max_unproven) {
    const auto silent = std::count_if(unproven_.begin(), unproven_.end(), [](const Unproven& each) {
      return !each.handshake->under_way();
    });
    const bool most_are_silent = 2 * static_cast<size_t>(silent) > options_.max_unproven;
    const auto first = std::min_element(
        unproven_.begin(), unproven_.end(), [&](const Unproven& a, const Unproven& b) {
          return end_of(a, most_are_silent) < end_of(b, most_are_silent);
        });

    // No connection loses its place before its time; until then the new one is held back.
    const auto end = end_of(*first, most_are_silent);
    if (end > Deadline::Clock::now()) {
      room_timer_.expires_at(end);
      room_timer_.async_wait([self = shared_from_this()](const error_code& code) {
        if (!code) self->resume();
      });
      return false;
    }
    const auto handshake = first->handshake;  // its callback takes it out of the list
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
