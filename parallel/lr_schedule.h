// Learning-rate schedules as pure functions of the step (the formulas of transformers'
// get_*_schedule_with_warmup, get_inverse_sqrt_schedule and get_wsd_schedule).
#pragma once

#include <cstdint>

#include "base/options.h"

namespace retort::parallel {

enum class LrSchedulerType {
  kConstant,
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kCosineWarmupWithMinLr,  // cosine one update ahead: the first rate is not 0, the last is min_lr
  kPolynomial,
  kInverseSqrt,  // falls for ever: neither min_lr nor max_steps
  kWarmupStableDecay
};
// The course of a warm-up-stable-decay schedule's last part.
enum class LrCooldownType { kLinear, kCosine, kOneMinusSqrt };

struct LrSchedule {
  LrSchedulerType type = LrSchedulerType::kCosine;
  double learning_rate = 1e-4;  // peak
  double min_lr = 0.0;
  int64_t warmup_steps = 0;
  int64_t max_steps = 1;   // at which min_lr is reached, where the rate stays
  int64_t num_cycles = 1;  // cosine_with_restarts: half waves, each from the peak down
  double power = 1.0;      // polynomial: of the share of steps that is left
  // inverse_sqrt: the peak is divided by the root of 1 + steps since the warm-up / timescale;
  // 0: warmup_steps, and 10000 without a warm-up
  int64_t timescale = 0;
  // warmup_stable_decay: the last steps before max_steps, in which the rate falls from the peak
  int64_t cooldown_steps = 0;
  LrCooldownType cooldown_type = LrCooldownType::kCosine;

  // The rate of update number `step`. As in transformers the first update is number 0.
  double at(int64_t step) const;
};

}  // namespace retort::parallel

template <>
struct retort::EnumNames<retort::parallel::LrSchedulerType> {
  using E = retort::parallel::LrSchedulerType;
  static constexpr std::array<std::pair<std::string_view, E>, 8> values{
      {{"constant", E::kConstant},
       {"linear", E::kLinear},
       {"cosine", E::kCosine},
       {"cosine_with_restarts", E::kCosineWithRestarts},
       {"cosine_warmup_with_min_lr", E::kCosineWarmupWithMinLr},
       {"polynomial", E::kPolynomial},
       {"inverse_sqrt", E::kInverseSqrt},
       {"warmup_stable_decay", E::kWarmupStableDecay}}};
};
template <>
struct retort::EnumNames<retort::parallel::LrCooldownType> {
  using E = retort::parallel::LrCooldownType;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"linear", E::kLinear}, {"cosine", E::kCosine}, {"1-sqrt", E::kOneMinusSqrt}}};
};
