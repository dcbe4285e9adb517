#include "rpc/detail/method_counters.h"

#include <algorithm>

namespace retort::rpc::detail {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void MethodCounters::count_called(const std::string& method, const EndedCall& call) {
  count(false, method, call);
}

void MethodCounters::count_served(const std::string& method, const EndedCall& call) {
  count(true, method, call);
}

void MethodCounters::count(bool served, const std::string& method, const EndedCall& call) {
  std::lock_guard lock(mutex_);
  MethodStats& stats = stats_[{served, method}];
  stats.calls += 1;
  stats.errors += call.how == EndedCall::How::kFailed ? 1 : 0;
  stats.bytes_sent += call.bytes_sent;
  stats.bytes_received += call.bytes_received;
  stats.credit_waits += call.waited.count() > 0 ? 1 : 0;
  stats.credit_wait_seconds += seconds(call.waited);

  if (call.how != EndedCall::How::kAnswered) return;
  stats.queue.add(call.served.queue);
  stats.handler.add(call.served.handler);
  // What the peer says of its own time is no more than there was.
  const std::chrono::nanoseconds there = call.served.queue + call.served.handler;
  if (!served) stats.wire.add(std::max(call.round_trip - there, std::chrono::nanoseconds(0)));
}

void MethodCounters::append_to(std::vector<MethodTraffic>& traffic, const std::string& peer) const {
  std::lock_guard lock(mutex_);
  for (const auto& [key, stats] : stats_)
    traffic.push_back({.peer = peer, .method = key.second, .served = key.first, .stats = stats});
}

}  // namespace retort::rpc::detail
