// Waiting for what another thread or process does.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "tests/support/sanitizer.h"

namespace retort::test {

// Until `done`, which is asked every `period`; false after `limit`, or kSlowness times that under a
// sanitizer.
inline bool wait_until(const std::function<bool()>& done,
                       std::chrono::seconds limit = std::chrono::seconds(60),
                       std::chrono::milliseconds period = std::chrono::milliseconds(5)) {
  const auto end = std::chrono::steady_clock::now() + limit * kSlowness;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(period);
  }
  return true;
}

}  // namespace retort::test
