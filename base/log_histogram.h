// Counts of durations in buckets of a fixed ratio: its size does not depend on what is counted.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace retort {

// Four buckets an octave from 1 us to 2^32 us (71 minutes); one below, in which everything counts
// as 0, and one above, in which everything counts as 71 minutes.
//
// Error: a quantile is the geometric middle of the bucket in which it lies, at most 2^(1/8) - 1 =
// 9.1 % from the true one.
// Memory: 1 KiB.
// Threads: one.
class LogHistogram {
 public:
  void add(std::chrono::nanoseconds duration);
  uint64_t count() const;
  // The duration below which the share `q` (0 to 1) of what was counted lies, in seconds; 0 if
  // nothing was.
  double quantile(double q) const;

  // What both have counted.
  LogHistogram& operator+=(const LogHistogram& other);
  // What was added to this one after `before`, which is an earlier copy of it.
  LogHistogram since(const LogHistogram& before) const;

  template <class A>
  void serialize(A& archive) {
    archive(counts_);
  }

 private:
  static constexpr size_t kPerOctave = 4, kNumOctaves = 32;
  static constexpr size_t kNumBuckets = kPerOctave * kNumOctaves + 2;
  static size_t bucket_of(std::chrono::nanoseconds duration);
  static double middle_seconds(size_t bucket);

  std::array<uint64_t, kNumBuckets> counts_{};
};

}  // namespace retort
