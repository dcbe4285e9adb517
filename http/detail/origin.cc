#include "http/detail/origin.h"

#include <utility>

namespace retort::http::detail {

Origin::Origin(boost::asio::io_context& io, int max_inflight, Duration keep_idle)
    : max_inflight_(max_inflight), keep_idle_(keep_idle), retire_timer_(io) {}

void Origin::enter(uint64_t ticket, std::function<void()> go) {
  if (num_inflight_ >= max_inflight_) {
    line_.emplace(ticket, std::move(go));
    return;
  }
  ++num_inflight_;
  go();
}

void Origin::leave() {
  if (line_.empty() || closed_) {
    --num_inflight_;
    return;
  }
  // The place goes straight to the next in line, so that the count stays as it is.
  auto next = line_.extract(line_.begin());
  next.mapped()();
}

std::shared_ptr<Connection> Origin::take_kept() {
  const auto oldest = Deadline::Clock::now() - keep_idle_;
  // The connection that was used last comes first: the server is least likely to have closed it.
  while (!kept_.empty()) {
    auto connection = std::move(kept_.back());
    kept_.pop_back();
    if (connection->idle_since() > oldest && connection->is_quiet()) return connection;
    connection->close();
  }
  return nullptr;
}

void Origin::keep(std::shared_ptr<Connection> connection) {
  if (closed_) return connection->close();
  connection->set_idle_since(Deadline::Clock::now());
  kept_.push_back(std::move(connection));
  if (!retiring_) retire_later();
}

void Origin::close() {
  closed_ = true;
  retire_timer_.cancel();
  for (const auto& connection : kept_)
    connection->close();
  kept_.clear();
}

// The connection at the front has been idle longest, so that one timer serves all.
void Origin::retire_later() {
  retiring_ = !kept_.empty() && !closed_;
  if (!retiring_) return;
  retire_timer_.expires_at(kept_.front()->idle_since() + keep_idle_);
  retire_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& code) {
    const auto self = weak.lock();
    if (self && !code) self->retire();
  });
}

void Origin::retire() {
  const auto oldest = Deadline::Clock::now() - keep_idle_;
  auto fresh = kept_.begin();
  for (; fresh != kept_.end() && (*fresh)->idle_since() <= oldest; ++fresh)
    (*fresh)->close();
  kept_.erase(kept_.begin(), fresh);
  retire_later();
}

}  // namespace retort::http::detail
