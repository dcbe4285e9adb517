// Metrics that are sums over a step, divided once they are global.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "recipes/run/objective.h"

namespace retort::recipes {

// A metric by its name and the place of its sum in StepSums::values.
struct MeanMetric {
  std::string_view name;
  size_t sum = 0;
};

// Adds each of `metrics` to `row`, divided by `divisor`; their names begin with `prefix`.
inline void add_means(std::span<const MeanMetric> metrics, const StepSums& sums, double divisor,
                      MetricsRow& row, const std::string& prefix = {}) {
  for (const MeanMetric& metric : metrics)
    row.add(prefix + std::string(metric.name), sums.values[metric.sum] / divisor);
}

}  // namespace retort::recipes
