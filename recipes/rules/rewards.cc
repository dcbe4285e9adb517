// Rules of the list `rewards:`.
#include "recipes/rules/block_rules.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "recipes/rewards/reward.h"
#include "recipes/roles/serving_roles.h"
#include "recipes/rules/references.h"

namespace retort::recipes {
namespace {

// Checks a model of ours that scores completions, or is asked about them in words.
void check_own_reward_role(const Recipe& recipe, const RecipePlaces& places, const KeyPath& path,
                           const std::string& role) {
  const bool judges = is_judge(recipe, role);
  const RoleOptions& options = recipe.roles.at(role);
  for (const rewards::RewardOptions& reward : recipe.rewards)
    if (judges && reward.role == role && reward.type == rewards::RewardType::kModel)
      places.refuse(path, "'" + role +
                              "' is asked in words by one reward and for a number by another; a "
                              "model does one of the two: give each a role of its own");

  const auto refuse_world = [&](const char* key, const std::string& why) {
    places.refuse({"roles", role, "world", key}, why);
  };
  if (options.world.pp > 1)
    refuse_world("pp",
                 "a role that scores completions has no pipeline stages; use dp for replicas" +
                     std::string(judges ? "" : ", or tp"));
  if (judges && options.world.tp > 1)
    refuse_world("tp", "a judge of ours is one process a replica in this version; use dp for more");
  if (options.world.sequence_parallel)
    refuse_world("sequence_parallel",
                 "has no effect on a role that scores completions, which keeps no activations");
  if (options.batching != Batching::kAsSent)
    places.refuse({"roles", role, "batching"},
                  "is for teachers and references; what scores completions gives the same bits "
                  "whatever waits beside them");
}

}  // namespace

void check_reward_roles(const Recipe& recipe, const RecipePlaces& places) {
  const auto frozen = frozen_roles(recipe);
  for (size_t i = 0; i < recipe.rewards.size(); ++i) {
    if (!recipe.rewards[i].role) continue;
    const std::string& role = *recipe.rewards[i].role;
    const KeyPath path{"rewards", std::to_string(i), "role"};
    check_declared(recipe.roles, places, path, role);
    if (role == Recipe::kDrivingRole)
      places.refuse(path, "the student trains here; a reward needs a role of its own");
    if (std::find(frozen.begin(), frozen.end(), role) != frozen.end())
      places.refuse(path, "'" + role +
                              "' is asked for log-probabilities elsewhere in this recipe; give "
                              "the reward a role of its own (it may have the same url)");
    if (!recipe.is_generator(role) && !recipe.roles.at(role).external)
      check_own_reward_role(recipe, places, path, role);
  }
}

void check_judge_templates(const std::vector<rewards::RewardOptions>& rewards,
                           const RecipePlaces& places) {
  for (size_t i = 0; i < rewards.size(); ++i) {
    const auto& file = rewards[i].template_file;
    try {
      if (file) rewards::judge_template(*file);
    } catch (const Error& error) {
      places.refuse({"rewards", std::to_string(i), "template"}, error.message());
    }
  }
}

}  // namespace retort::recipes
