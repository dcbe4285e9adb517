// A recipe's `reward_model:` block: which loss over scored pairs, and what head is trained.
#pragma once

#include <cstdint>

#include "base/options.h"
#include "recipes/losses/bradley_terry.h"

namespace retort::recipes {

struct RewardModelOptions {
  losses::RewardLoss loss_type = losses::RewardLoss::kBradleyTerry;
  int64_t num_labels = 1;
  double center_rewards_coefficient = 0.0;
  bool use_margin = false;

  template <class V>
  void fields(V& visit) {
    visit("loss_type", loss_type,
          "bradley_terry: -log sigmoid(score of chosen - score of rejected)");
    visit("num_labels", num_labels,
          "numbers that the head gives a sequence; above 1 every row says with the column "
          "`objective`, from 0, which of them its pair is about");
    visit("center_rewards_coefficient", center_rewards_coefficient,
          "weight of (score of chosen + score of rejected)^2, which keeps scores near 0; 0: off");
    visit("use_margin", use_margin,
          "every row has a number `margin`, by which the chosen score should be above the "
          "rejected one; false: such a column is not looked at");
  }
  // kInvalidArgument naming the field.
  void validate() const;
  losses::BradleyTerryOptions loss() const;
};

}  // namespace retort::recipes
