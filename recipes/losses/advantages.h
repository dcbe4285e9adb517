// Advantages of sampled completions from their rewards. Formulas and sources: docs/losses.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/options.h"

namespace retort::losses {

// grpo divides reward - mean of the group by the group's deviation, the batch's, or not at all.
enum class ScaleRewards { kGroup, kBatch, kNone };

struct Advantages {
  // [S] float32 on the CPU, no gradient; 0 for an unscorable sample
  at::Tensor advantages;
  int64_t num_unscorable = 0;         // samples whose reward is NaN
  int64_t num_unscorable_groups = 0;  // groups without any reward
  // Share of the scorable samples whose standard deviation (the batch's with kBatch, else their
  // group's) is 0: no signal from them.
  double frac_reward_zero_std = 0;
  // over the scorable samples; Bessel's correction, 0 for fewer than two
  double reward_mean = 0;
  double reward_std = 0;
};

// Common to all:
// Arguments: rewards [S] float32 or float64 of the GLOBAL batch, on any device, S = G *
//   num_generations, the samples of a prompt adjacent. NaN marks an unscorable sample, which is
//   left out of every mean and deviation and has advantage 0 (as in TRL 1.16).
// Arithmetic: float64. Deviations have Bessel's correction and are 0 for a single value.
// Collectives: none. Every rank computes the same from the same rewards and takes its slice:
//   nothing here is correct on a part of the batch.
// Errors: kInvalidArgument for the shape, the dtype, an infinite reward, S not a multiple of
//   num_generations.

// GRPO: (r - mean of the group) / (std + 1e-4), std by `scale`; kNone: r - mean. A group with one
// scorable sample gets 0.
Advantages group_advantages(const at::Tensor& rewards, int64_t num_generations, ScaleRewards scale);

// GDPO (arXiv 2601.05242; TRL 1.16's normalize_then_sum): each objective against its own group,
// their weighted sum against the batch:
//   s = sum over k of weight_k (x_k - mean of the group) / (std of the group + 1e-4)
//   A = (s - mean of the batch) / (std of the batch + 1e-4)
// So an objective counts by its weight, however its scores are spread.
//   rewards     as above: which samples can be scored, and the metrics
//   objectives  [S, K] float64 of the GLOBAL batch on the CPU; NaN: this objective did not score it
//   weights     [K]
// frac_reward_zero_std is the share of samples in whose group no objective differs.
Advantages decoupled_advantages(const at::Tensor& rewards, const at::Tensor& objectives,
                                const std::vector<double>& weights, int64_t num_generations);

// RLOO: r - mean of the group's other samples; 0 where there is no other. `normalize`: then (A -
// mean) / (std + 1e-4) over the batch's scorable samples.
Advantages rloo_advantages(const at::Tensor& rewards, int64_t num_generations,
                           bool normalize = false);

// REINFORCE++ (arXiv 2501.03262): (r - mean of the batch) / (std of the batch + 1e-4); with
// `group_baseline` r first loses the mean of its group (the paper's variant for several samples a
// prompt).
Advantages reinforce_plus_plus_advantages(const at::Tensor& rewards, int64_t num_generations,
                                          bool group_baseline = false);

}  // namespace retort::losses

template <>
struct retort::EnumNames<retort::losses::ScaleRewards> {
  using E = retort::losses::ScaleRewards;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"group", E::kGroup}, {"batch", E::kBatch}, {"none", E::kNone}}};
};
