#include "launch/links/link_plan.h"

#include <algorithm>
#include <map>

#include "launch/placement/placement.h"
#include "models/config/config.h"
#include "recipes/type/plan.h"
#include "recipes/type/registry.h"

namespace retort::launch::links {
namespace {

using recipes::Recipe;

// Every replica of the generator gets every weight once, each `every_steps`.
Traffic pushed_weights(const Recipe& recipe) {
  const std::string& role = recipe.generation->role;
  const recipes::WeightSyncOptions sync = recipe.weight_sync.value_or(recipes::WeightSyncOptions());
  const int64_t dtype_bytes = recipe.roles.at(role).dtype == recipes::FloatType::kFloat32 ? 4 : 2;
  const int64_t model =
      models::read_model_config(recipe.student().model).num_parameters() * dtype_bytes;
  return {.role = role,
          .to_student = false,
          .message_bytes = std::min<int64_t>(model, static_cast<int64_t>(sync.bucket_bytes.bytes)),
          .step_bytes = static_cast<double>(model * recipe.roles.at(role).world.dp) /
                        static_cast<double>(sync.every_steps)};
}

// Ranks of a role by the host that they are on.
std::map<size_t, double> ranks_by_host(const Recipe& recipe, const std::string& role) {
  std::map<size_t, double> ranks;
  const int64_t count = recipe.roles.at(role).world.world_size();
  if (recipe.launch.hosts.empty()) {
    ranks[0] = static_cast<double>(count);
    return ranks;
  }
  const Placement placement = place_processes(recipe);
  for (int64_t rank = 0; rank < count; ++rank)
    ++ranks[placement.host_of(role, rank)];
  return ranks;
}

}  // namespace

std::vector<Traffic> traffic_of(const Recipe& recipe) {
  const recipes::RecipePlan plan = recipes::recipe_type(recipe).plan(recipe);
  const auto rows =
      static_cast<double>(recipes::micro_batch_tokens(recipe, plan.sequences_per_row));
  std::vector<Traffic> all;
  for (const recipes::LinkPlan& link : plan.links)
    all.push_back({.role = link.role,
                   .message_bytes = static_cast<int64_t>(link.bytes_per_token * rows),
                   .step_bytes = link.bytes_per_step});
  if (recipe.generation) all.push_back(pushed_weights(recipe));
  return all;
}

std::vector<HostPair> host_pairs(const Recipe& recipe, const std::string& role) {
  const auto students = ranks_by_host(recipe, Recipe::kDrivingRole);
  const auto servers = ranks_by_host(recipe, role);
  const auto total = static_cast<double>(recipe.student().world.world_size() *
                                         recipe.roles.at(role).world.world_size());
  std::vector<HostPair> pairs;
  for (const auto& [student, asking] : students)
    for (const auto& [server, serving] : servers)
      pairs.push_back({.student = student, .server = server, .share = asking * serving / total});
  return pairs;
}

}  // namespace retort::launch::links
