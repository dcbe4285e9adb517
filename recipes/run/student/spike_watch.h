// Notices values that leave their usual range, such as a loss that jumps: early enough to look at
// the data of that step, and at the checkpoint before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace retort::recipes {

// Watches one metric. What is usual is told by the last kWindow finite values: their median, and
// the median of the distances from it (MAD), times 1.4826 a robust standard deviation. A value is a
// spike if it lies above the median by more than kDeviations of those, and by more than a tenth of
// the median, so that a curve without noise has none. Spikes count among what is usual like all
// others: a new level is told a few times, not for ever.
// Threads: one. It changes nothing, and begins anew in a resumed run.
class SpikeWatch {
 public:
  static constexpr size_t kWindow = 64, kFewest = 16;
  static constexpr double kDeviations = 8;

  // "loss 9.4 at step 120 is a spike: usual are 2.1 to 2.4"; nullopt for a usual value, and for
  // the first kFewest.
  std::optional<std::string> see(const std::string& name, int64_t step, double value);

 private:
  std::deque<double> window_;
};

}  // namespace retort::recipes
