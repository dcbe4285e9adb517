// Asserts that an object is used by one thread: bound to the first thread that asks.
#pragma once

#include <atomic>
#include <thread>

namespace retort {

class ThreadChecker {
 public:
  // True on the thread that called first (or that called rebind() last).
  bool on_valid_thread() const {
    std::thread::id expected{};
    const auto self = std::this_thread::get_id();
    return owner_.compare_exchange_strong(expected, self) || expected == self;
  }
  void rebind() { owner_.store(std::this_thread::get_id()); }

 private:
  mutable std::atomic<std::thread::id> owner_{};
};

}  // namespace retort
