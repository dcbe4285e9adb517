// The sums of a step or an evaluation: added over the ranks, and divided into metrics.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "parallel/group.h"
#include "recipes/run/loop/objective.h"

namespace retort::recipes {

// A metric by its name and the place of its sum in StepSums::values.
struct MeanMetric {
  std::string_view name;
  size_t sum = 0;
  // Where the metric is not a mean over what the recipe counts: the place of its own count in
  // StepSums::values.
  std::optional<size_t> count = std::nullopt;
};

// Every number of `sums` becomes its sum over the ranks of `group`, all as one fp64 vector, in the
// order in which StepSums declares them. Collectives: one all-reduce; none in a group of one rank.
void all_reduce(StepSums& sums, parallel::Group& group);

// Adds each of `metrics` to `row`, in their order: its sum divided by its own count, or by
// `divisor` if it has none. A metric whose own count is 0 is left out. Names begin with `prefix`.
void add_means(std::span<const MeanMetric> metrics, const StepSums& sums, double divisor,
               MetricsRow& row, const std::string& prefix = {});

}  // namespace retort::recipes
