#include "launch/commands/path_plan.h"

#include <set>

#include "launch/backends/placement.h"
#include "recipes/input_paths.h"

namespace retort::launch {
namespace {

// In the order of launch.hosts. `role` "": of all roles.
std::vector<std::string> hosts_of(const recipes::Recipe& recipe, const std::string& role) {
  if (recipe.launch.hosts.empty()) return {};
  const Placement placement = place_processes(recipe);
  std::set<size_t> indices;
  for (const auto& [name, hosts] : placement.hosts)
    if (role.empty() || name == role) indices.insert(hosts.begin(), hosts.end());

  std::vector<std::string> names;
  for (const size_t index : indices)
    names.push_back(recipe.launch.hosts[index].host);
  return names;
}

}  // namespace

std::vector<PathPlan> plan_paths(const recipes::Recipe& recipe) {
  std::vector<PathPlan> paths{
      {.key = "output_dir", .path = recipe.output_dir, .role = {}, .hosts = hosts_of(recipe, {})}};
  for (const recipes::InputPath& input : recipes::input_paths(recipe))
    paths.push_back({.key = input.key,
                     .path = input.path,
                     .role = input.role,
                     .hosts = hosts_of(recipe, input.role)});
  return paths;
}

}  // namespace retort::launch
