#include "recipes/grpo/round_metrics.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <limits>

#include "models/generation/completion_spans.h"
#include "recipes/rollout/episode_metrics.h"

namespace retort::recipes {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

// Counts samples; of those that came to an end their tokens, and which of them were cut off.
struct Lengths {
  double samples = 0, ended = 0, tokens = 0, clipped = 0;
};
// Sums one reward over the samples that it could score.
struct Component {
  double sum = 0, count = 0;
};

}  // namespace

RoundMetrics round_metrics(parallel::World& world, const Rollout& rollout,
                           const losses::Advantages& advantages, const RoundFacts& facts,
                           int64_t step) {
  const size_t rewards = facts.reward_names.size();
  Lengths lengths;
  std::vector<Component> components(rewards);
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples) {
      lengths.samples += 1;
      if (!is_lost(sample)) {
        lengths.ended += 1;
        lengths.tokens += static_cast<double>(models::num_model_tokens(sample.completion));
        lengths.clipped += sample.completion.finish_reason == models::FinishReason::kLength ? 1 : 0;
      }
      for (size_t r = 0; r < rewards; ++r)
        if (sample.components[r]) {
          components[r].sum += *sample.components[r];
          components[r].count += 1;
        }
    }

  // One all-reduce sums all numbers over the dp ranks.
  const RewardKl kl = facts.kl.value_or(RewardKl{});
  std::vector<double> sums{lengths.samples, lengths.tokens, lengths.clipped,
                           kl.sum,          kl.tokens,      facts.overlong_penalty_sum.value_or(0),
                           lengths.ended};
  const size_t first_component = sums.size();
  for (const Component& component : components)
    sums.insert(sums.end(), {component.sum, component.count});
  at::Tensor all = at::tensor(sums, at::kDouble);
  if (world.dp().size() > 1) world.dp().all_reduce(all);
  const double* sum = all.const_data_ptr<double>();
  const double samples = sum[0];
  const double ended = sum[6];

  RoundMetrics metrics{.row = {.step = step, .values = {}}};
  MetricsRow& row = metrics.row;
  const double scorable = samples - static_cast<double>(advantages.num_unscorable);
  row.add("reward", scorable > 0 ? advantages.reward_mean : kNoNumber)  // null, not 0
      .add("reward_std", advantages.reward_std)
      .add("frac_reward_zero_std", advantages.frac_reward_zero_std)
      .add("num_unscorable", advantages.num_unscorable)
      .add("completions/mean_length", ended > 0 ? sum[1] / ended : kNoNumber)
      .add("completions/clipped_ratio", ended > 0 ? sum[2] / ended : kNoNumber);
  if (facts.kl) row.add("kl", sum[4] > 0 ? sum[3] / sum[4] : kNoNumber);
  if (facts.overlong_penalty_sum)
    row.add("overlong_penalty", scorable > 0 ? sum[5] / scorable : kNoNumber);
  if (facts.num_resampled_prompts) row.add("num_resampled_prompts", *facts.num_resampled_prompts);
  for (size_t r = 0; r < rewards; ++r) {
    const std::string name = "rewards/" + facts.reward_names[r];
    const double* component = sum + first_component + 2 * r;
    const double scores = component[1];  // 0 scores have no mean
    row.add(name, scores > 0 ? component[0] / scores : kNoNumber)
        .add(name + "/num_missing", static_cast<int64_t>(samples - scores));
  }

  if (facts.episodes) metrics.other_prompts = add_episode_metrics(rollout, world.dp(), row);
  row.add("generation_time", rollout.generation_seconds)
      .add("generator_wait_time", rollout.wait_seconds)
      .add("reward_time", rollout.reward_seconds)
      .add("reward_wait_time", rollout.reward_wait_seconds)
      .add("weight_sync_time", facts.last_push_seconds);
  return metrics;
}

}  // namespace retort::recipes
