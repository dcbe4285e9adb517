#include "parallel/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace retort::parallel {
namespace {

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

}  // namespace

double LrSchedule::at(int64_t step) const {
  if (step < warmup_steps) return learning_rate * ratio(step, warmup_steps);
  if (type == LrSchedulerType::kConstant) return learning_rate;
  const int64_t decay_steps = max_steps - warmup_steps;
  double share = 0;  // of the way from min_lr to the peak
  if (type == LrSchedulerType::kLinear) {
    share = std::max(0.0, ratio(max_steps - step, decay_steps));
  } else {
    const double progress = std::min(1.0, ratio(step - warmup_steps, decay_steps));
    share = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return min_lr + (learning_rate - min_lr) * share;
}

}  // namespace retort::parallel
