#include "recipes/rollout/reward_check.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "recipes/rollout/local_reward_models.h"
#include "recipes/rollout/reward_input.h"

namespace retort::recipes {
namespace {

using rewards::RewardOptions;
using rewards::RewardType;

bool compares(const RewardOptions& reward) {
  return reward.type == RewardType::kExactMatch || reward.type == RewardType::kNumeric;
}

// Returns those rewards of the recipe that are wanted, under the names that the run gives them. All
// have a weight here, because one that is only shown must work as well.
template <class Wanted>
std::vector<RewardOptions> rewards_where(const Recipe& recipe, Wanted&& is_wanted) {
  std::vector<RewardOptions> wanted;
  if (recipe.rewards.empty()) return wanted;
  const rewards::RewardSet all(recipe.rewards, /*scores=*/false);
  for (size_t i = 0; i < recipe.rewards.size(); ++i) {
    RewardOptions reward = recipe.rewards[i];
    if (!is_wanted(reward)) continue;
    reward.name = all.names()[i];
    reward.weight = 1;
    wanted.push_back(std::move(reward));
  }
  return wanted;
}

// "1, 1, not scorable"
std::string list_scores(const std::vector<rewards::Scored>& scores, size_t reward, size_t first,
                        size_t end) {
  std::string text;
  for (size_t i = first; i < end; ++i) {
    const std::optional<double>& score = scores[i].components[reward];
    text += (text.empty() ? "" : ", ") + (score ? scientific(*score) : "not scorable");
  }
  return text;
}

// True of a reward that the run asks of others than this recipe's own programs and models: it is
// not asked here.
bool is_asked_elsewhere(const Recipe& recipe, const RewardOptions& reward) {
  if (reward.type == RewardType::kEnvironment) return true;
  return reward.role && recipe.roles.at(*reward.role).external;
}

}  // namespace

References::References(const Recipe& recipe) {
  auto comparing = rewards_where(recipe, compares);
  // A program may understand any reference. So a row is only asked to have one, and no program is
  // started for it.
  for (RewardOptions& reward : comparing) {
    if (reward.symbolic.empty()) continue;
    reward.type = RewardType::kExactMatch;
    reward.symbolic.clear();
    reward.timeout.reset();
  }
  if (!comparing.empty()) rewards_.emplace(std::move(comparing));
}

void References::require(const data::PromptSample& prompt) {
  if (!rewards_) return;
  rewards::RewardInput input = reward_input(prompt);
  input.completion = prompt.reference;
  rewards_->score({std::move(input)});
}

std::string References::names() const {
  std::string text;
  if (rewards_)
    for (const std::string& name : rewards_->names())
      text += (text.empty() ? "" : ", ") + name;
  return text;
}

void check_rewards(SelfCheck& check, const Recipe& recipe,
                   const std::vector<data::PromptSample>& prompts,
                   const std::vector<int32_t>& drawn) {
  const models::Tokenizer& tokenizer = check.student().tokenizer;
  const std::vector<RewardOptions> asked = rewards_where(
      recipe, [&](const RewardOptions& reward) { return !is_asked_elsewhere(recipe, reward); });
  for (const RewardOptions& reward : recipe.rewards)
    if (is_asked_elsewhere(recipe, reward))
      check.check("reward", true,
                  "is scored by role '" + (reward.role ? *reward.role : recipe.environment->role) +
                      "', which is not asked");
  if (asked.empty()) return;

  // The rows' own answers come first, which must get 1 from a reward that compares. What was drawn
  // comes last.
  std::vector<rewards::RewardInput> inputs;
  for (const data::PromptSample& prompt : prompts) {
    if (prompt.reference.empty()) continue;
    inputs.push_back(reward_input(prompt));
    inputs.back().completion = prompt.reference;
    inputs.back().completion_ids = tokenizer.encode(prompt.reference, /*add_special_tokens=*/false);
    inputs.back().num_tokens = static_cast<int64_t>(inputs.back().completion_ids.size());
  }
  const size_t num_own = inputs.size();
  inputs.push_back(reward_input(prompts.at(0)));
  add_completion(inputs.back(), tokenizer, drawn, models::FinishReason::kLength, /*stops=*/{});

  rewards::RewardSet set(asked, /*scores=*/true, reward_roles_here(recipe));
  const std::vector<rewards::Scored> scores = set.score(inputs);
  for (size_t reward = 0; reward < asked.size(); ++reward) {
    bool is_right = true, scores_any = num_own == 0;
    for (const rewards::Scored& one : scores)
      scores_any |= one.components[reward].has_value();
    for (size_t i = 0; i < num_own; ++i)
      if (compares(asked[reward])) is_right &= scores[i].components[reward] == 1.0;

    std::string text;
    if (num_own > 0)
      text = list_scores(scores, reward, 0, num_own) + " for the answers of " +
             std::to_string(num_own) + " rows" + (is_right ? "" : ", which must be 1") + "; ";
    text += list_scores(scores, reward, num_own, num_own + 1) + " for " +
            std::to_string(drawn.size()) + " tokens that the student draws";
    if (!scores_any) text += "; none is scorable: fits the pattern what the role answers?";
    check.check("reward " + asked[reward].name, is_right && scores_any, text);
  }
}

}  // namespace retort::recipes
