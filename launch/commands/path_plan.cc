#include "launch/commands/path_plan.h"

#include <set>

#include "launch/backends/placement.h"
#include "recipes/input_paths.h"

namespace retort::launch {
namespace {

// Which hosts the processes of a role are on, as placed once for all paths.
class RoleHosts {
 public:
  explicit RoleHosts(const recipes::Recipe& recipe) : hosts_(recipe.launch.hosts) {
    if (!hosts_.empty()) placement_ = place_processes(recipe);
  }

  // In the order of launch.hosts; none without it. `role` "": of all roles.
  std::vector<std::string> of(const std::string& role) const {
    std::set<size_t> indices;
    for (const auto& [name, hosts] : placement_.hosts)
      if (role.empty() || name == role) indices.insert(hosts.begin(), hosts.end());

    std::vector<std::string> names;
    for (const size_t index : indices)
      names.push_back(hosts_[index].host);
    return names;
  }

 private:
  const std::vector<recipes::HostOptions>& hosts_;
  Placement placement_;
};

}  // namespace

std::vector<PathPlan> plan_paths(const recipes::Recipe& recipe) {
  const RoleHosts hosts(recipe);
  std::vector<PathPlan> paths{
      {.key = "output_dir", .path = recipe.output_dir, .role = {}, .hosts = hosts.of({})}};
  for (const recipes::InputPath& input : recipes::input_paths(recipe))
    paths.push_back(
        {.key = input.key, .path = input.path, .role = input.role, .hosts = hosts.of(input.role)});
  return paths;
}

}  // namespace retort::launch
