#include "launch/plan/plan.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "base/process_name.h"
#include "launch/placement/placement.h"
#include "recipes/roles/input_paths.h"
#include "recipes/type/registry.h"

namespace retort::launch {
namespace {

using recipes::Recipe;

std::vector<HostPlan> plan_hosts(const Recipe& recipe) {
  std::vector<HostPlan> hosts;
  for (const recipes::HostOptions& host : recipe.launch.hosts)
    hosts.push_back({.host = host.host, .slots = host.slots, .processes = {}});
  if (hosts.empty()) return hosts;
  const Placement placement = place_processes(recipe);
  for (const auto& [name, role] : recipe.roles)
    for (int64_t rank = 0; rank < role.world.world_size(); ++rank)
      hosts[placement.host_of(name, rank)].processes.push_back(process_name(name, rank));
  return hosts;
}

// Which hosts the processes of a role are on, as placed once for all paths.
class RoleHosts {
 public:
  explicit RoleHosts(const recipes::Recipe& recipe) : hosts_(recipe.launch.hosts) {
    if (!hosts_.empty()) placement_ = place_processes(recipe);
  }

  // The hosts of a role in the order of launch.hosts; none without it. `role` "": of all roles.
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

std::vector<PathPlan> plan_paths(const recipes::Recipe& recipe) {
  const RoleHosts hosts(recipe);
  std::vector<PathPlan> paths{
      {.key = "output_dir", .path = recipe.output_dir, .role = {}, .hosts = hosts.of({})}};
  for (const recipes::InputPath& input : recipes::input_paths(recipe))
    paths.push_back(
        {.key = input.key, .path = input.path, .role = input.role, .hosts = hosts.of(input.role)});
  return paths;
}

}  // namespace

const RolePlan& Plan::bottleneck() const {
  return *std::max_element(roles.begin(), roles.end(), [](const RolePlan& a, const RolePlan& b) {
    return a.flops_per_rank() < b.flops_per_rank();
  });
}

Plan make_plan(const Recipe& recipe) {
  const recipes::RecipePlan own = recipes::recipe_type(recipe).plan(recipe);
  const std::vector<RolePlan> roles = plan_roles(recipe);
  return {.hosts = plan_hosts(recipe),
          .roles = roles,
          .shared_devices = shared_devices(roles),
          .links = own.links,
          .caches = own.caches,
          .transfers = plan_transfers(recipe, roles, own.links),
          .paths = plan_paths(recipe),
          .tokens_per_step = recipes::tokens_per_step(recipe, own.sequences_per_row)};
}

}  // namespace retort::launch
