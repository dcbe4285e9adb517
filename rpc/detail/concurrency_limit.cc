#include "rpc/detail/concurrency_limit.h"

#include <algorithm>

namespace retort::rpc::detail {

void ConcurrencyLimit::enter() {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return under_way_ < allowed_; });
  ++under_way_;
}

void ConcurrencyLimit::leave(Clock::duration took) {
  std::lock_guard lock(mutex_);
  --under_way_;
  if (took <= kQuick)
    allowed_ = std::min(allowed_ + 1, most_);
  else if (took > kLong)
    allowed_ = std::max(allowed_ / 2, least_);
  // So many are woken as there may be room for: one for its own place, one for the place that it
  // has earned.
  room_.notify_one();
  if (took <= kQuick) room_.notify_one();
}

size_t ConcurrencyLimit::allowed() const {
  std::lock_guard lock(mutex_);
  return allowed_;
}

}  // namespace retort::rpc::detail
