// A point in time by which something must have happened. Every wait in the project takes one.
#pragma once

#include <algorithm>
#include <chrono>

namespace retort {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds timeout) {
    return Deadline(Clock::now() + timeout);
  }
  explicit Deadline(Clock::time_point at) : at_(at) {}

  Clock::time_point time() const { return at_; }
  bool expired() const { return Clock::now() >= at_; }
  // Time left, never negative.
  std::chrono::milliseconds remaining() const {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(0));
  }

 private:
  Clock::time_point at_;
};

}  // namespace retort
