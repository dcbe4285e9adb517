#include "rpc/detail/peer_state.h"

#include <algorithm>
#include <vector>

namespace retort::rpc::detail {

std::shared_ptr<void> PeerState::acquire(const std::shared_ptr<PeerState>& peer, uint64_t bytes,
                                         const std::optional<Deadline>& deadline, NoCredit without,
                                         std::chrono::nanoseconds* waited) {
  std::unique_lock lock(peer->mutex_);
  // A large call passes no other that waits, even if there is room for it.
  const bool must_queue = bytes > kSmallBytes && !peer->line_.empty();
  if ((must_queue || !peer->has_room(bytes)) && without != NoCredit::kOverdraw) {
    if (without == NoCredit::kFail)
      throw Error(ErrorCode::kResourceExhausted,
                  "rpc.max_inflight_bytes or rpc.max_inflight_calls is in flight to this peer")
          .with("peer", peer->name_)
          .with("inflight_bytes", peer->inflight_bytes_)
          .with("calls", peer->inflight_calls_);
    const auto begin = std::chrono::steady_clock::now();
    const bool found = peer->wait_for_room(lock, bytes, deadline);
    if (waited != nullptr) *waited = std::chrono::steady_clock::now() - begin;
    if (!found)
      throw Error(ErrorCode::kTimeout, "no credit for this call within rpc.queue_timeout")
          .with("peer", peer->name_);
  }
  if (peer->closed_)
    throw Error(ErrorCode::kClosed, "the agent is closed").with("peer", peer->name_);

  peer->inflight_bytes_ += bytes;
  ++peer->inflight_calls_;
  if (bytes > kSmallBytes) ++peer->inflight_large_;
  return {static_cast<void*>(peer.get()), [peer, bytes](void*) { peer->release(bytes); }};
}

// Small calls need a place among the calls, and no room in bytes. One large call may always go, or
// a message above the bound would never leave.
bool PeerState::has_room(uint64_t bytes) const {
  if (closed_) return true;
  if (inflight_calls_ >= std::min(max_calls_, peers_max_calls_)) return false;
  if (bytes <= kSmallBytes || inflight_large_ == 0) return true;
  return bytes <= max_bytes_ && inflight_bytes_ <= max_bytes_ - bytes;
}

bool PeerState::wait_for_room(std::unique_lock<std::mutex>& lock, uint64_t bytes,
                              const std::optional<Deadline>& deadline) {
  const auto wait = [&](const auto& done) {
    if (deadline) return room_.wait_until(lock, deadline->time(), done);
    room_.wait(lock, done);
    return true;
  };
  if (bytes <= kSmallBytes) return wait([&] { return has_room(bytes); });

  const auto place = line_.insert(line_.end(), bytes);
  const bool found = wait([&] { return closed_ || (place == line_.begin() && has_room(bytes)); });
  line_.erase(place);
  room_.notify_all();  // the next one is first now
  return found;
}

void PeerState::release(uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    inflight_bytes_ -= bytes;
    --inflight_calls_;
    if (bytes > kSmallBytes) --inflight_large_;
  }
  room_.notify_all();
}

void PeerState::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  room_.notify_all();
}

void PeerState::count_sent(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  sent_ += bytes;
}

void PeerState::count_received(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  received_ += bytes;
}

void PeerState::count_call(std::chrono::steady_clock::duration latency) {
  std::lock_guard lock(mutex_);
  latencies_ms_[calls_++ % latencies_ms_.size()] =
      std::chrono::duration<float, std::milli>(latency).count();
}

PeerStats PeerState::stats() const {
  PeerStats stats;
  std::vector<float> latencies;
  {
    std::lock_guard lock(mutex_);
    stats.bytes_sent = sent_;
    stats.bytes_received = received_;
    stats.calls = calls_;
    stats.inflight_bytes = inflight_bytes_;
    latencies.assign(latencies_ms_.begin(),
                     latencies_ms_.begin() + std::min<size_t>(calls_, latencies_ms_.size()));
  }
  // The latencies are sorted without the lock, so that no call waits for it.
  if (latencies.empty()) return stats;
  std::sort(latencies.begin(), latencies.end());
  const auto quantile = [&](double q) {
    return latencies[static_cast<size_t>(q * (latencies.size() - 1) + 0.5)];
  };
  stats.latency_p50_ms = quantile(0.50);
  stats.latency_p99_ms = quantile(0.99);
  return stats;
}

void PeerState::set_limits(uint64_t max_message_bytes, uint64_t max_calls) {
  std::lock_guard lock(mutex_);
  max_message_ = max_message_bytes;
  // The other half is for calls that are made where nothing may wait (NoCredit::kOverdraw).
  peers_max_calls_ = std::min(max_calls, kMaxIncomingCalls / 2);
}

uint64_t PeerState::max_message_bytes() const {
  std::lock_guard lock(mutex_);
  return max_message_;
}

}  // namespace retort::rpc::detail
