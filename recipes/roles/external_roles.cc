#include "recipes/roles/external_roles.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engines/contract/traits.h"
#include "models/config/config.h"
#include "recipes/roles/serving_roles.h"

namespace retort::recipes {
namespace {

// Returns the largest label that `role` is asked for, if it scores.
std::optional<int64_t> largest_label(const Recipe& recipe, const std::string& role) {
  std::optional<int64_t> largest;
  for (const rewards::RewardOptions& reward : recipe.rewards)
    if (reward.role == role) largest = std::max(largest.value_or(0), reward.label.value_or(0));
  return largest;
}

}  // namespace

engines::Needs engine_needs(const Recipe& recipe, const std::string& role) {
  using engines::Purpose;
  engines::Needs needs{.role = role, .objective = recipe.recipe.text};
  if (is_asked_in_words(recipe, role)) {
    needs.what = Purpose::kWords;
    for (const rewards::RewardOptions& reward : recipe.rewards)
      if (reward.role == role)
        needs.answer_tokens = std::max(
            needs.answer_tokens, reward.max_new_tokens.value_or(rewards::kDefaultAnswerTokens));
    return needs;
  }

  needs.context_tokens = recipe.data.max_length;
  if (recipe.is_generator(role)) {
    needs.what = recipe.grpo ? Purpose::kDrawsWithRatio : Purpose::kDraws;
    needs.sampling = recipe.generation->sampling;
    return needs;
  }

  if (const auto label = largest_label(recipe, role)) {
    needs.what = Purpose::kRewards;
    needs.label = *label;
    return needs;
  }

  // References are asked for one number a token, and so are some teachers; the payload says what
  // the others are asked for.
  needs.what = Purpose::kGivenLogProbs;
  if (!recipe.distill) return needs;
  const DistillOptions& distill = *recipe.distill;
  if (distill.payload == roles::PayloadKind::kHiddenStates) {
    needs.what = Purpose::kHiddenStates;
    needs.hidden_size = models::read_model_config(recipe.roles.at(role).model).hidden_size;
  }
  if (distill.payload != roles::PayloadKind::kTopK) return needs;
  needs.what = Purpose::kTopK;
  needs.top_k = distill.loss_top_k;
  needs.temperature = distill.temperature;
  needs.names_ids = distill.support != roles::Support::kTeacher;
  needs.tail_mass = distill.tail != losses::Tail::kRenormalize;
  return needs;
}

bool is_asked_in_words(const Recipe& recipe, const std::string& role) {
  const auto& external = recipe.roles.at(role).external;
  return external && engines::traits_of(external->engine).words_alone;
}

std::vector<std::string> roles_of_engines(const Recipe& recipe) {
  std::vector<std::string> names;
  for (const auto& [name, role] : recipe.roles)
    if (role.external) names.push_back(name);
  return names;
}

Duration longest_load_timeout(const Recipe& recipe) {
  Duration longest = recipe.launch.load_timeout;
  for (const std::string& role : serving_roles(recipe))
    longest = std::max(longest, load_timeout_of(recipe, role));
  return longest;
}

Duration longest_answer(const Recipe& recipe, const std::string& role) {
  const auto& external = recipe.roles.at(role).external;
  return external ? std::max(recipe.rpc.timeout, external->timeout) : recipe.rpc.timeout;
}

Duration longest_answer(const Recipe& recipe) {
  Duration longest = recipe.rpc.timeout;
  for (const std::string& role : frozen_roles(recipe))
    longest = std::max(longest, longest_answer(recipe, role));
  return longest;
}

Duration load_timeout_of(const Recipe& recipe, const std::string& role) {
  const RoleOptions& options = recipe.roles.at(role);
  Duration timeout = recipe.launch.load_timeout;
  if (options.external) timeout = std::max(timeout, options.external->load_timeout);
  if (options.environment) timeout = std::max(timeout, options.environment->start_timeout);
  // It serves when its episodes can begin.
  const bool waits = recipe.is_generator(role) && recipe.environment &&
                     recipe.roles.contains(recipe.environment->role) && !options.environment;
  if (waits) timeout = std::max(timeout, load_timeout_of(recipe, recipe.environment->role));
  return timeout;
}

bool is_repeatable(const Recipe& recipe) {
  return roles_of_engines(recipe).empty() && !recipe.environment;
}

}  // namespace retort::recipes
