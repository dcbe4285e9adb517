// `retort check` of rewards: they are asked, and their scores shown, before a run depends on them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recipes/data/sample.h"
#include "recipes/rewards/reward.h"
#include "recipes/type/self_check.h"

namespace retort::recipes {

// Scores the answers that the first rows themselves have, and `drawn`, the beginning of the
// student's completion of the first prompt, with every reward of the recipe but those of engines:
// programs are started, services asked and models of roles loaded, as the run will. An answer that
// numeric or exact_match does not take for its own reference fails, as does whatever a reward
// cannot do.
void check_rewards(SelfCheck& check, const Recipe& recipe,
                   const std::vector<data::PromptSample>& prompts,
                   const std::vector<int32_t>& drawn);

// Throws where the reference of a prompt is missing, or is none for numeric or exact_match.
class References {
 public:
  explicit References(const Recipe& recipe);
  void require(const data::PromptSample& prompt);
  // Names the rewards that compare; "" if there are none.
  std::string names() const;

 private:
  std::optional<rewards::RewardSet> rewards_;
};

}  // namespace retort::recipes
