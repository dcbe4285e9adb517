#include "launch/ssh/fit_to_hosts.h"

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/document/recipe_file.h"
#include "launch/yaml/resolved_yaml.h"

namespace retort::launch {
namespace {

using recipes::Recipe;

// The same batch on fewer replicas of the student; what has no effect on one replica is left out.
Recipe with_dp(Recipe recipe, int64_t dp) {
  recipes::TrainOptions& train = recipe.train;
  parallel::Layout& world = recipe.roles.at(Recipe::kDrivingRole).world;
  train.gradient_accumulation_steps *= world.dp / dp;
  world.dp = dp;
  if (dp == 1) {
    world.distributed_optimizer = false;
    train.grad_bucket_bytes = recipes::TrainOptions().grad_bucket_bytes;
  }
  if (world.world_size() == 1)
    recipe.launch.collective_timeout = recipes::LaunchOptions().collective_timeout;

  // The recipe is written and read again, so that its rules are checked for the smaller world.
  // resolved_yaml() leaves out the values of variables, which are carried over.
  const std::string name = "the recipe with roles.student.world.dp: " + std::to_string(dp);
  Recipe result = parse_recipe(resolved_yaml(recipe), name,
                               {.cuda = true, .check_inputs = false, .env_values = false});
  for (auto& [role, options] : result.roles) {
    options.env = recipe.roles.at(role).env;
    options.env_elsewhere = recipe.roles.at(role).env_elsewhere;
  }
  return result;
}

// The numbers of replicas that the run may go on with, the largest first. Only a divisor lets
// gradient accumulation make up for the lost replicas, so that a step keeps its rows.
std::vector<int64_t> smaller_dps(const Recipe& recipe) {
  const int64_t now = recipe.student().world.dp;
  std::vector<int64_t> result;
  for (int64_t dp = now - 1; dp >= recipe.launch.min_dp.value_or(now); --dp)
    if (now % dp == 0) result.push_back(dp);
  return result;
}

// The error that says why the hosts that are left have no room; nullopt if they have.
std::optional<Error> misfit(const Recipe& recipe, const LostHosts& lost) {
  try {
    place_processes(recipe, lost);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace

Recipe fit_to_hosts(const Recipe& recipe, const LostHosts& lost) {
  const std::optional<Error> why = misfit(recipe, lost);
  if (!why) return recipe;
  for (const int64_t dp : smaller_dps(recipe))
    if (const Recipe smaller = with_dp(recipe, dp); !misfit(smaller, lost)) return smaller;
  throw Error(ErrorCode::kUnavailable,
              "the run cannot go on without the lost hosts: " + why->message() +
                  "; spare slots on other hosts would make room, and launch.min_dp "
                  "allows fewer replicas of the student");
}

void check_min_dp(const Recipe& recipe) {
  if (!recipe.launch.min_dp) return;
  const int64_t dp = recipe.student().world.dp;
  if (*recipe.launch.min_dp < dp && smaller_dps(recipe).empty())
    throw Error(ErrorCode::kInvalidArgument,
                "launch.min_dp: " + std::to_string(*recipe.launch.min_dp) +
                    " allows no smaller dp: roles.student.world.dp: " + std::to_string(dp) +
                    " must be a multiple of it, so that a step keeps its rows");
  for (const int64_t smaller : smaller_dps(recipe))
    with_dp(recipe, smaller);
}

}  // namespace retort::launch
