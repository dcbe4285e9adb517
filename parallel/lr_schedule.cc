#include "parallel/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace retort::parallel {
namespace {

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

double half_cosine(double progress) { return 0.5 * (1.0 + std::cos(std::numbers::pi * progress)); }

// Returns how much of the way from min_lr to the peak is left after `progress` of the cooldown.
double cooldown_share(LrCooldownType type, double progress) {
  switch (type) {
    case LrCooldownType::kLinear: return 1.0 - progress;
    case LrCooldownType::kCosine: return half_cosine(progress);
    case LrCooldownType::kOneMinusSqrt: return 1.0 - std::sqrt(progress);
  }
  return 0;
}

// Returns how much of the peak is left `since` steps after the warm-up.
double inverse_root(const LrSchedule& schedule, int64_t since) {
  constexpr int64_t kWithoutWarmup = 10'000;
  const int64_t usual = schedule.warmup_steps > 0 ? schedule.warmup_steps : kWithoutWarmup;
  const int64_t timescale = schedule.timescale > 0 ? schedule.timescale : usual;
  return 1.0 / std::sqrt(ratio(since + timescale, timescale));
}

// Returns how much of the peak is left between the warm-up and the end of a schedule.
double share_of_peak(const LrSchedule& schedule, int64_t step) {
  const int64_t decay_steps = schedule.max_steps - schedule.warmup_steps;
  const double progress = std::min(1.0, ratio(step - schedule.warmup_steps, decay_steps));
  switch (schedule.type) {
    case LrSchedulerType::kConstant: return 1;
    case LrSchedulerType::kLinear:
      return std::max(0.0, ratio(schedule.max_steps - step, decay_steps));
    case LrSchedulerType::kCosine: return half_cosine(progress);
    case LrSchedulerType::kCosineWithRestarts:
      if (progress >= 1.0) return 0;
      return half_cosine(std::fmod(static_cast<double>(schedule.num_cycles) * progress, 1.0));
    case LrSchedulerType::kCosineWarmupWithMinLr:
      return half_cosine(std::min(1.0, ratio(step - schedule.warmup_steps + 1, decay_steps)));
    case LrSchedulerType::kPolynomial: return std::pow(1.0 - progress, schedule.power);
    case LrSchedulerType::kInverseSqrt: return inverse_root(schedule, step - schedule.warmup_steps);
    case LrSchedulerType::kWarmupStableDecay: {
      const int64_t into = step - (schedule.max_steps - schedule.cooldown_steps);
      if (into < 0) return 1;
      if (into >= schedule.cooldown_steps) return 0;
      return cooldown_share(schedule.cooldown_type, ratio(into, schedule.cooldown_steps));
    }
  }
  return 0;
}

}  // namespace

double LrSchedule::at(int64_t step) const {
  const bool one_ahead = type == LrSchedulerType::kCosineWarmupWithMinLr;
  if (step < warmup_steps) return learning_rate * ratio(one_ahead ? step + 1 : step, warmup_steps);
  if (type == LrSchedulerType::kConstant) return learning_rate;
  return min_lr + (learning_rate - min_lr) * share_of_peak(*this, step);
}

}  // namespace retort::parallel
