// Says whether an object is used by one thread only: the first one that asks. For classes that
// promise "Threads: compute".
#pragma once

#include <atomic>
#include <thread>

#include "base/error.h"

namespace retort {

class ThreadChecker {
 public:
  // True on the thread that called first (or that called rebind() last).
  bool on_valid_thread() const {
    std::thread::id expected{};
    const auto self = std::this_thread::get_id();
    return owner_.compare_exchange_strong(expected, self) || expected == self;
  }
  // Debug builds end the process on any other thread; others do nothing. `call`: for the message.
  void check([[maybe_unused]] const char* call) const {
#ifndef NDEBUG
    RETORT_CHECK(on_valid_thread()) << call << " on another thread than the first call's";
#endif
  }
  void rebind() { owner_.store(std::this_thread::get_id()); }

 private:
  mutable std::atomic<std::thread::id> owner_{};
};

}  // namespace retort
