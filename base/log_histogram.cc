#include "base/log_histogram.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace retort {

// Bucket 0 is what is below 1 us; bucket b above it begins at 2^((b - 1) / 4) us.
size_t LogHistogram::bucket_of(std::chrono::nanoseconds duration) {
  const double us = static_cast<double>(duration.count()) / 1e3;
  if (us < 1) return 0;
  const auto quarter_octaves = static_cast<size_t>(std::log2(us) * double{kPerOctave});
  return std::min(1 + quarter_octaves, kNumBuckets - 1);
}

double LogHistogram::middle_seconds(size_t bucket) {
  if (bucket == 0) return 0;
  const double begin = static_cast<double>(bucket - 1) / double{kPerOctave};
  const bool last = bucket == kNumBuckets - 1;  // it has no end, and so no middle
  return std::exp2(begin + (last ? 0 : 0.5 / double{kPerOctave})) / 1e6;
}

void LogHistogram::add(std::chrono::nanoseconds duration) { ++counts_[bucket_of(duration)]; }

uint64_t LogHistogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
}

double LogHistogram::quantile(double q) const {
  const uint64_t total = count();
  if (total == 0) return 0;
  const auto rank = static_cast<uint64_t>(std::ceil(q * static_cast<double>(total)));
  uint64_t below = 0;
  for (size_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    below += counts_[bucket];
    if (below >= std::max<uint64_t>(rank, 1)) return middle_seconds(bucket);
  }
  return middle_seconds(kNumBuckets - 1);
}

LogHistogram& LogHistogram::operator+=(const LogHistogram& other) {
  for (size_t bucket = 0; bucket < kNumBuckets; ++bucket)
    counts_[bucket] += other.counts_[bucket];
  return *this;
}

LogHistogram LogHistogram::since(const LogHistogram& before) const {
  LogHistogram later = *this;
  for (size_t bucket = 0; bucket < kNumBuckets; ++bucket)
    later.counts_[bucket] -= before.counts_[bucket];
  return later;
}

}  // namespace retort
