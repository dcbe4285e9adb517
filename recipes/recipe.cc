#include "recipes/recipe.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "recipes/registry.h"

namespace retort::recipes {
namespace {

// The visitor of has_block: an optional block is there once it has a value, a list once it has an
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

void RendezvousOptions::validate() const {
  if (address && address->empty())
    throw Error(ErrorCode::kInvalidArgument, "address is empty; write a host, or null");
  if (port < 0 || port > 65535)
    throw Error(ErrorCode::kInvalidArgument, "port must be a port, or 0 for any that is free");
}

void LaunchOptions::validate() const {
  if (collective_timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "collective_timeout must be above 0");
  if (stop_timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "stop_timeout must be above 0");
  if (load_timeout.count() <= 0)
    throw Error(ErrorCode::kInvalidArgument, "load_timeout must be above 0");
  if (max_restarts < 0)
    throw Error(ErrorCode::kInvalidArgument, "max_restarts must not be negative");
  if (min_dp && *min_dp < 1) throw Error(ErrorCode::kInvalidArgument, "min_dp must be at least 1");
  if (metrics_port && (*metrics_port < 0 || *metrics_port > 65535))
    throw Error(ErrorCode::kInvalidArgument,
                "metrics_port must be a port, 1 to 65535, or 0: any that is free");
  if (!metrics_command.empty() && metrics_command.front().empty())
    throw Error(ErrorCode::kInvalidArgument,
                "metrics_command begins with an empty word; write a program and its arguments");
}

void LaunchOptions::resolve(bool is_stop_timeout_written) {
  // Slurm kills what has not ended KillWait after it was asked to, which is 30 s unless raised.
  constexpr Duration kWithinKillWait{25'000};
  if (backend == Backend::kSlurm && !is_stop_timeout_written) stop_timeout = kWithinKillWait;
}

int64_t Recipe::num_processes() const {
  int64_t sum = 0;
  for (const auto& [name, role] : roles)
    sum += role.world.world_size();
  return sum;
}

std::vector<std::string> frozen_roles(const Recipe& recipe) {
  return recipe_type(recipe).frozen_roles(recipe);
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

std::vector<std::string> serving_roles(const Recipe& recipe) {
  std::vector<std::string> names = frozen_roles(recipe);
  for (std::string& role : reward_roles(recipe))
    if (std::find(names.begin(), names.end(), role) == names.end())
      names.push_back(std::move(role));
  if (recipe.generation) names.push_back(recipe.generation->role);
  return names;
}

bool has_block(const Recipe& recipe, std::string_view name) {
  BlockFinder finder{.wanted = name};
  Recipe copy = recipe;
  copy.fields(finder);
  return finder.found;
}

}  // namespace retort::recipes
