#include "recipes/losses/high_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace retort::losses {

float entropy_threshold(std::vector<float> entropies, double quantile) {
  std::erase_if(entropies, [](float value) { return std::isnan(value); });
  if (entropies.empty()) return std::numeric_limits<float>::infinity();

  // The quantile may lie between two of the sorted values, which are interpolated.
  const double place = (1 - quantile) * static_cast<double>(entropies.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(place);
  const auto at = entropies.begin() + below;
  std::nth_element(entropies.begin(), at, entropies.end());
  const double lower = *at;
  if (at + 1 == entropies.end()) return *at;

  const double upper = *std::min_element(at + 1, entropies.end());
  return static_cast<float>(lower + (place - static_cast<double>(below)) * (upper - lower));
}

}  // namespace retort::losses
