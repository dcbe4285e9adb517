#include "launch/ssh/heartbeat_clock.h"

#include <algorithm>

namespace retort::launch {
namespace {

constexpr std::chrono::milliseconds kStill{2'000};

}  // namespace

HeartbeatClock::HeartbeatClock(Duration interval, Duration limit, Clock::time_point now)
    : interval_(std::min(interval, limit / 4)),
      limit_(limit),
      looked_(now),
      heard_(now),
      due_(now) {}

void HeartbeatClock::look(Clock::time_point now) {
  const auto gap = now - looked_;
  // Nobody looked for so long because this process stood still, which is not the other's silence.
  if (gap > kStill) heard_ = std::min(heard_ + gap, now);
  looked_ = now;
}

bool HeartbeatClock::due() {
  if (looked_ < due_) return false;
  due_ = looked_ + interval_;
  return true;
}

}  // namespace retort::launch
