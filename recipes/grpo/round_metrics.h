// What metrics say of a round: its samples, rewards and times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "recipes/grpo/reward_kl.h"
#include "recipes/losses/advantages.h"
#include "recipes/rollout/rollout.h"
#include "recipes/run/metrics/metrics_writer.h"

namespace retort::recipes {

// What is known of a round beside its samples.
struct RoundFacts {
  std::vector<std::string> reward_names;
  double last_push_seconds = 0;
  std::optional<RewardKl> kl;                    // taken from the rewards
  std::optional<double> overlong_penalty_sum;    // of this rank's samples
  std::optional<int64_t> num_resampled_prompts;  // of all ranks
  bool episodes = false;                         // every sample is one
};

struct RoundMetrics {
  MetricsRow row;
  // Of episodes: the share of groups that are not comparable, as add_episode_metrics says it.
  double other_prompts = 0;
};

// One all-reduce on dp; of episodes also add_episode_metrics.
RoundMetrics round_metrics(parallel::World& world, const Rollout& rollout,
                           const losses::Advantages& advantages, const RoundFacts& facts,
                           int64_t step);

}  // namespace retort::recipes
