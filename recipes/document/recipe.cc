#include "recipes/document/recipe.h"

#include <algorithm>

namespace retort::recipes {
namespace {

// The visitor of has_block. An optional block is there once it has a value, a list once it has an
// item.
struct BlockFinder {
  std::string_view wanted;
  bool found = false;

  template <class T>
  void operator()(const char* name, T& value, const char*) {
    if (name != wanted) return;
    if constexpr (requires { value.has_value(); }) found = value.has_value();
    if constexpr (requires { value.push_back({}); }) found = !value.empty();
  }
};

}  // namespace

int64_t Recipe::longest_completion() const {
  return environment ? environment->max_tokens : generation->max_new_tokens;
}

int64_t Recipe::num_processes() const {
  int64_t sum = 0;
  for (const auto& [name, role] : roles)
    sum += role.world.world_size();
  return sum;
}

std::vector<std::string> reward_roles(const Recipe& recipe) {
  std::vector<std::string> names;
  for (const rewards::RewardOptions& reward : recipe.rewards)
    if (reward.role && std::find(names.begin(), names.end(), *reward.role) == names.end())
      names.push_back(*reward.role);
  return names;
}

bool is_judge(const Recipe& recipe, const std::string& role) {
  return std::any_of(recipe.rewards.begin(), recipe.rewards.end(), [&](const auto& reward) {
    return reward.role == role && reward.type == rewards::RewardType::kJudge;
  });
}

bool has_block(const Recipe& recipe, std::string_view name) {
  BlockFinder finder{.wanted = name};
  // fields() hands out every field to be changed, so it works on a copy.
  Recipe copy = recipe;
  copy.fields(finder);
  return finder.found;
}

}  // namespace retort::recipes
