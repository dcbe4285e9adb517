// The rewards of a round, as its samples are compared by.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/world.h"
#include "recipes/rollout/rollout.h"

namespace retort::recipes {

// What the length of a completion takes from its reward (DAPO, arXiv 2503.14476, formula 13): 0 up
// to max_new_tokens - penalty_tokens tokens, from there on evenly down to -1 at max_new_tokens.
// `penalty_tokens` 0: always 0.
double overlong_penalty(int64_t num_tokens, int64_t max_new_tokens, int64_t penalty_tokens);

// Adds its overlong_penalty to the adjustment of every sample that has a reward.
void punish_overlong(Rollout& rollout, int64_t max_new_tokens, int64_t penalty_tokens);

// Sums the penalties of the samples that have a reward.
double overlong_penalty_sum(const Rollout& rollout, int64_t max_new_tokens, int64_t penalty_tokens);

// Every rank's rewards with their adjustments in the global order of `num_groups` prompts: the
// prompt at place i of a round was on rank i mod dp. [num_groups * num_generations] float64, NaN:
// unscorable. One all-gather on dp.
at::Tensor gather_rewards(parallel::World& world, const Rollout& rollout, int64_t num_groups,
                          int64_t num_generations);

// Gathers, as gather_rewards does, the components of each sample before their weights, and with
// `adjustments` one more, its adjustment: [num_groups * num_generations, K] float64, NaN: this one
// could not score it. `components`: how many there are. One all-gather on dp.
at::Tensor gather_components(parallel::World& world, const Rollout& rollout, int64_t num_groups,
                             int64_t num_generations, size_t components, bool adjustments);

// Returns the values of the samples of this rank's prompts, from one value for each sample of the
// round.
at::Tensor values_of_rank(parallel::World& world, const at::Tensor& values,
                          int64_t num_generations);

// Prompts, by their places, whose samples' rewards are all the same, as far as they are scorable.
// [S], or [S, K] with several of a sample, each of which must be the same.
std::vector<int64_t> places_without_signal(const at::Tensor& rewards, int64_t num_generations);

}  // namespace retort::recipes
