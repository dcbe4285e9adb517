// When a life sign is due to the other end of a connection, and whether that one is silent.
#pragma once

#include <chrono>

#include "base/units.h"

namespace retort::launch {

// Time in which nobody looked, because this process stood still (a stop signal, a debugger), is not
// counted as the other's silence.
class HeartbeatClock {
 public:
  using Clock = std::chrono::steady_clock;
  HeartbeatClock(Duration interval, Duration limit, Clock::time_point now = Clock::now());

  // Call it at least once a second.
  void look(Clock::time_point now = Clock::now());
  void heard() { heard_ = looked_; }
  bool silent() const { return looked_ - heard_ > limit_; }
  // True once an interval.
  bool due();

 private:
  std::chrono::milliseconds interval_, limit_;
  Clock::time_point looked_, heard_, due_;
};

}  // namespace retort::launch
