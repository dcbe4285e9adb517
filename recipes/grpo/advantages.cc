#include "recipes/grpo/advantages.h"

namespace retort::recipes {

losses::Advantages grpo_advantages(const GrpoRewards& rewards, int64_t num_generations,
                                   const GrpoOptions& options) {
  if (options.decouples_rewards())
    return losses::decoupled_advantages(rewards.totals, rewards.objectives, rewards.weights,
                                        num_generations);
  switch (options.advantage) {
    case AdvantageType::kGrpo:
      return losses::group_advantages(rewards.totals, num_generations, options.scale_rewards);
    case AdvantageType::kRloo: return losses::rloo_advantages(rewards.totals, num_generations);
    case AdvantageType::kReinforcePlusPlus:
      return losses::reinforce_plus_plus_advantages(rewards.totals, num_generations);
  }
  return {};
}

}  // namespace retort::recipes
