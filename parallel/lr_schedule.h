// Learning-rate schedules as pure functions of the step (the formulas of transformers'
// get_*_schedule_with_warmup).
#pragma once

#include <cstdint>

#include "base/options.h"

namespace retort::parallel {

enum class LrSchedulerType { kConstant, kLinear, kCosine };

struct LrSchedule {
  LrSchedulerType type = LrSchedulerType::kCosine;
  double learning_rate = 1e-4;  // peak
  double min_lr = 0.0;
  int64_t warmup_steps = 0;
  int64_t max_steps = 1;  // at which min_lr is reached, where the rate stays

  // The rate of update number `step`. As in transformers the first update is number 0.
  double at(int64_t step) const;
};

}  // namespace retort::parallel

template <>
struct retort::EnumNames<retort::parallel::LrSchedulerType> {
  using E = retort::parallel::LrSchedulerType;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"constant", E::kConstant}, {"linear", E::kLinear}, {"cosine", E::kCosine}}};
};
