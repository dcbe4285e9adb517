#include "recipes/grpo/round_rewards.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/sizes.h"

namespace retort::recipes {

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
  const int64_t ranks = world.dp().size();
  const int64_t most = (num_groups + ranks - 1) / ranks;
  at::Tensor mine =
      at::full({most, num_generations}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  double* value = mine.mutable_data_ptr<double>();
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples) {
      if (sample.reward) *value = *sample.reward + sample.adjustment;
      ++value;
    }
  const at::Tensor all = ranks == 1 ? mine.unsqueeze(0) : world.dp().all_gather(mine);
  return all.permute({1, 0, 2})
      .reshape({most * ranks, num_generations})
      .narrow(0, 0, num_groups)
      .reshape({-1});
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
  const double* value = rewards.const_data_ptr<double>();
  for (int64_t place = 0; place < rewards.numel() / num_generations; ++place) {
    double lowest = std::numeric_limits<double>::infinity();
    double highest = -lowest;
    for (int64_t g = 0; g < num_generations; ++g, ++value) {
      if (std::isnan(*value)) continue;
      lowest = std::min(lowest, *value);
      highest = std::max(highest, *value);
    }
    if (lowest >= highest) places.push_back(place);
  }
  return places;
}

}  // namespace retort::recipes
