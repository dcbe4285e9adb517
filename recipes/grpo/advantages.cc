#include "recipes/grpo/advantages.h"

namespace retort::recipes {

losses::Advantages grpo_advantages(const at::Tensor& rewards, int64_t num_generations,
                                   const GrpoOptions& options) {
  switch (options.advantage) {
    case AdvantageType::kGrpo:
      return losses::group_advantages(rewards, num_generations, options.scale_rewards);
    case AdvantageType::kRloo: return losses::rloo_advantages(rewards, num_generations);
    case AdvantageType::kReinforcePlusPlus:
      return losses::reinforce_plus_plus_advantages(rewards, num_generations);
  }
  return {};
}

}  // namespace retort::recipes
