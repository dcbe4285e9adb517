#include "recipes/run/student/spike_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace retort::recipes {
namespace {

constexpr double kDeviationOfMad = 1.4826;  // of a normal distribution
constexpr double kShareOfMedian = 0.1;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string short_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

std::optional<std::string> SpikeWatch::see(const std::string& name, int64_t step, double value) {
  if (!std::isfinite(value)) return std::nullopt;
  // A value is compared with those before it; from then on it is one of them.
  const std::vector<double> usual(window_.begin(), window_.end());
  window_.push_back(value);
  if (window_.size() > kWindow) window_.pop_front();
  if (usual.size() < kFewest) return std::nullopt;

  const double middle = median(usual);
  std::vector<double> distances;
  for (const double one : usual)
    distances.push_back(std::abs(one - middle));
  const double deviation = kDeviationOfMad * median(distances);
  const double excess = value - middle;
  // The second bound is for a metric that hardly moves: its deviation is almost 0, and every value
  // would be a spike.
  if (excess <= kDeviations * deviation || excess <= kShareOfMedian * std::abs(middle))
    return std::nullopt;
  return name + " " + short_text(value) + " at step " + std::to_string(step) +
         " is a spike: usual are " + short_text(middle - deviation) + " to " +
         short_text(middle + deviation);
}

}  // namespace retort::recipes
