#include "recipes/run/loop/metric_sums.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <vector>

namespace retort::recipes {

void all_reduce(StepSums& sums, parallel::Group& group) {
  if (group.size() == 1) return;
  std::vector<double> numbers{sums.count, sums.loss, sums.num_tokens, sums.num_truncated};
  numbers.insert(numbers.end(), sums.values.begin(), sums.values.end());
  at::Tensor packed = at::tensor(numbers, at::kDouble);
  group.all_reduce(packed);

  const double* global = packed.const_data_ptr<double>();
  sums.count = global[0];
  sums.loss = global[1];
  sums.num_tokens = global[2];
  sums.num_truncated = global[3];
  sums.values.assign(global + 4, global + numbers.size());
}

void add_means(std::span<const MeanMetric> metrics, const StepSums& sums, double divisor,
               MetricsRow& row, const std::string& prefix) {
  for (const MeanMetric& metric : metrics) {
    const double count = metric.count ? sums.values[*metric.count] : divisor;
    if (metric.count && count == 0) continue;
    row.add(prefix + std::string(metric.name), sums.values[metric.sum] / count);
  }
}

}  // namespace retort::recipes
