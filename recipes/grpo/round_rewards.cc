#include "recipes/grpo/round_rewards.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/sizes.h"

namespace retort::recipes {
namespace {

// Gathers `width` numbers of each sample of every rank, NaN where `write` fills in none:
// [num_groups * num_generations, width] float64. Prompts are dealt round the ranks, so place i of
// the round is row i / ranks of rank i % ranks. Every rank sends as many rows as the one with most,
// because an all-gather takes as much from each; what is too much stands at the end, and is cut
// off.
at::Tensor gather_numbers(parallel::World& world, const Rollout& rollout, int64_t num_groups,
                          int64_t num_generations, int64_t width,
                          const std::function<void(const RolloutSample&, double*)>& write) {
  const int64_t ranks = world.dp().size();
  const int64_t most = (num_groups + ranks - 1) / ranks;
  at::Tensor mine = at::full({most, num_generations * width},
                             std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  double* value = mine.mutable_data_ptr<double>();
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples) {
      write(sample, value);
      value += width;
    }

  const at::Tensor all = ranks == 1 ? mine.unsqueeze(0) : world.dp().all_gather(mine);
  return all.permute({1, 0, 2})
      .reshape({most * ranks, num_generations * width})
      .narrow(0, 0, num_groups)
      .reshape({-1, width});
}

}  // namespace

double overlong_penalty(int64_t num_tokens, int64_t max_new_tokens, int64_t penalty_tokens) {
  const int64_t over = num_tokens - (max_new_tokens - penalty_tokens);
  if (penalty_tokens == 0 || over <= 0) return 0;
  return -static_cast<double>(std::min(over, penalty_tokens)) / static_cast<double>(penalty_tokens);
}

void punish_overlong(Rollout& rollout, int64_t max_new_tokens, int64_t penalty_tokens) {
  for (RolloutGroup& group : rollout.groups)
    for (RolloutSample& sample : group.samples)
      if (sample.reward)
        sample.adjustment += overlong_penalty(to_int64(sample.completion.token_ids.size()),
                                              max_new_tokens, penalty_tokens);
}

double overlong_penalty_sum(const Rollout& rollout, int64_t max_new_tokens,
                            int64_t penalty_tokens) {
  double sum = 0;
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples)
      if (sample.reward)
        sum += overlong_penalty(to_int64(sample.completion.token_ids.size()), max_new_tokens,
                                penalty_tokens);
  return sum;
}

at::Tensor gather_rewards(parallel::World& world, const Rollout& rollout, int64_t num_groups,
                          int64_t num_generations) {
  return gather_numbers(world, rollout, num_groups, num_generations, 1,
                        [](const RolloutSample& sample, double* value) {
                          if (sample.reward) *value = *sample.reward + sample.adjustment;
                        })
      .reshape({-1});
}

at::Tensor gather_components(parallel::World& world, const Rollout& rollout, int64_t num_groups,
                             int64_t num_generations, size_t components, bool adjustments) {
  const auto write = [&](const RolloutSample& sample, double* value) {
    if (!sample.reward) return;
    for (size_t k = 0; k < components; ++k)
      if (sample.components.at(k)) value[k] = *sample.components[k];
    if (adjustments) value[components] = sample.adjustment;
  };
  return gather_numbers(world, rollout, num_groups, num_generations,
                        to_int64(components) + (adjustments ? 1 : 0), write);
}

at::Tensor values_of_rank(parallel::World& world, const at::Tensor& values,
                          int64_t num_generations) {
  const at::Tensor by_prompt = values.view({-1, num_generations});
  std::vector<at::Tensor> mine;
  for (int64_t place = world.dp().rank(); place < by_prompt.size(0); place += world.dp().size())
    mine.push_back(by_prompt.select(0, place));
  return mine.empty() ? at::empty({0}, values.options()) : at::cat(mine);
}

std::vector<int64_t> places_without_signal(const at::Tensor& rewards, int64_t num_generations) {
  std::vector<int64_t> places;
  const at::Tensor numbers = rewards.contiguous();
  const double* value = numbers.const_data_ptr<double>();
  const int64_t width = rewards.dim() == 2 ? rewards.size(1) : 1;
  const auto all_alike = [&](int64_t place, int64_t k) {
    double lowest = std::numeric_limits<double>::infinity();
    double highest = -lowest;
    for (int64_t g = 0; g < num_generations; ++g) {
      const double reward = value[(place * num_generations + g) * width + k];
      if (std::isnan(reward)) continue;
      lowest = std::min(lowest, reward);
      highest = std::max(highest, reward);
    }
    // A group with no or one scorable sample has no spread either.
    return lowest >= highest;
  };

  for (int64_t place = 0; place < rewards.size(0) / num_generations; ++place) {
    bool same = true;
    for (int64_t k = 0; k < width; ++k)
      same = same && all_alike(place, k);
    if (same) places.push_back(place);
  }
  return places;
}

}  // namespace retort::recipes
