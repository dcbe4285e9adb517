#include "recipes/document/reward_model_options.h"

#include "base/error.h"

namespace retort::recipes {

losses::BradleyTerryOptions RewardModelOptions::loss() const {
  return {.center_rewards_coefficient = center_rewards_coefficient};
}

void RewardModelOptions::validate() const {
  constexpr int64_t kMost = 4096;
  if (num_labels < 1 || num_labels > kMost)
    throw Error(ErrorCode::kInvalidArgument, "num_labels must be 1 to " + std::to_string(kMost));
  loss().validate();
}

}  // namespace retort::recipes
