// What rpc_bench measures: one way to bring bytes to the other process and to hear that they are
// there. All of them take turns in one run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace retort::bench {

using Clock = std::chrono::steady_clock;

inline constexpr int64_t kSmallBytes = 64;
inline constexpr int64_t kStreamBytes = int64_t{64} << 20;
inline constexpr int kStreamDepth = 2;
inline constexpr int64_t kLargestBytes = int64_t{256} << 20;
inline constexpr std::chrono::seconds kWait{60};

// Round trips of one turn: how long each took, and all of them together.
struct Turn {
  std::vector<double> call_us;
  double seconds = 0;
};

// Small calls, one at a time, while a stream of large messages goes the same way.
struct LoadedTurn {
  std::vector<double> call_us;
  double stream_bytes_per_second = 0;
};

// The first bytes of memory that is there from the start: new pages would cost more than a copy.
// Copies share it: which pages it has decides the rate of large messages, for all contestants
// alike.
class Source {
 public:
  at::Tensor first(int64_t bytes) const { return memory_.narrow(0, 0, bytes); }

 private:
  at::Tensor memory_ = at::ones({kLargestBytes}, at::kByte);
};

// Threads: one.
class Contestant {
 public:
  virtual ~Contestant() = default;
  // `count` round trips: a request of `bytes` and an answer of a few, `depth` on their way at a
  // time. Throws when an answer is not there within a minute.
  virtual Turn run(int64_t bytes, int depth, int count) = 0;
  // kSmallBytes one at a time for `seconds`, beside kStreamDepth messages of kStreamBytes.
  virtual std::optional<LoadedTurn> run_loaded(double /*seconds*/) { return std::nullopt; }
};

inline double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Keeps `depth` round trips on their way until `count` have begun. `wait` waits for the oldest one.
template <class Begin, class Wait>
Turn keep_on_their_way(int depth, int count, const Begin& begin, const Wait& wait) {
  Turn turn;
  turn.call_us.reserve(static_cast<size_t>(count));
  std::deque<Clock::time_point> begun;
  const auto finish_oldest = [&] {
    wait();
    turn.call_us.push_back(microseconds_since(begun.front()));
    begun.pop_front();
  };

  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    if (begun.size() == static_cast<size_t>(depth)) finish_oldest();
    begun.push_back(Clock::now());
    begin();
  }
  while (!begun.empty())
    finish_oldest();
  turn.seconds = microseconds_since(start) * 1e-6;
  return turn;
}

}  // namespace retort::bench
