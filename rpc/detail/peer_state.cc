#include "rpc/detail/peer_state.h"

#include <algorithm>
#include <vector>

namespace retort::rpc::detail {

void PeerState::acquire(uint64_t bytes, Deadline deadline, bool wait) {
  std::unique_lock lock(mutex_);
  const auto room = [&] {
    return closed_ || inflight_calls_ == 0 ||
           (inflight_calls_ < kMaxInflightCalls && bytes <= max_bytes_ &&
            inflight_bytes_ <= max_bytes_ - bytes);
  };
  if (!room()) {
    if (!wait)
      throw Error(ErrorCode::kResourceExhausted, "rpc.max_inflight_bytes is in flight to this peer")
          .with("peer", name_)
          .with("inflight_bytes", inflight_bytes_)
          .with("calls", inflight_calls_);
    if (!room_.wait_until(lock, deadline.time(), room))
      throw Error(ErrorCode::kTimeout, "no credit for this call by its deadline")
          .with("peer", name_);
  }
  if (closed_) throw Error(ErrorCode::kClosed, "the agent is closed").with("peer", name_);
  inflight_bytes_ += bytes;
  ++inflight_calls_;
}

void PeerState::release(uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    RETORT_CHECK(inflight_calls_ > 0 && inflight_bytes_ >= bytes)
        << "credit released twice for " << name_;
    inflight_bytes_ -= bytes;
    --inflight_calls_;
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
  if (latencies.empty()) return stats;
  std::sort(latencies.begin(), latencies.end());
  const auto quantile = [&](double q) {
    return latencies[static_cast<size_t>(q * (latencies.size() - 1) + 0.5)];
  };
  stats.latency_p50_ms = quantile(0.50);
  stats.latency_p99_ms = quantile(0.99);
  return stats;
}

void PeerState::set_max_message_bytes(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  max_message_ = bytes;
}

uint64_t PeerState::max_message_bytes() const {
  std::lock_guard lock(mutex_);
  return max_message_;
}

}  // namespace retort::rpc::detail
