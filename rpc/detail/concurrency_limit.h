// How many of many attempts are under way at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace retort::rpc::detail {

// What comes back quickly makes room for one more, what takes long for half as many: a crowd that
// dials one machine, or one port, has no more under way than it can answer in time.
//
// Threads: any; enter() waits for a leave().
class ConcurrencyLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kQuick{250}, kLong{1'000};

  // Never fewer than `least`, never more than `most`; `least` at first.
  ConcurrencyLimit(size_t least, size_t most) : least_(least), most_(most), allowed_(least) {}

  void enter();
  // `took`: since enter().
  void leave(Clock::duration took);
  size_t allowed() const;

 private:
  const size_t least_, most_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  size_t allowed_, under_way_ = 0;
};

}  // namespace retort::rpc::detail
