// Rules of the `rpc:` block.
#include "recipes/rules/block_rules.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "recipes/rules/changed_field.h"
#include "recipes/rules/references.h"
#include "recipes/type/registry.h"
#include "rpc/options.h"

namespace retort::recipes {
namespace {

// Returns why `role` has nothing that could come from or go to a device, or "" if it has.
std::string keeps_to_host(const Recipe& recipe, const std::string& role) {
  const auto roles = recipe_type(recipe).device_roles(recipe);
  if (!recipe.is_generator(role) && std::find(roles.begin(), roles.end(), role) == roles.end())
    return "this role answers log-probabilities of tokens, which are read in host memory";

  for (const std::string& end : {std::string(Recipe::kDrivingRole), role})
    if (recipe.roles.at(end).world.device != parallel::Device::kCuda)
      return "roles." + end + ".world.device is cpu";
  return "";
}

void check_device_maps(const Recipe& recipe, const RecipePlaces& places) {
  for (const auto& [role, map] : recipe.rpc.device_maps) {
    const KeyPath path{"rpc", "device_maps", role};
    if (role == Recipe::kDrivingRole)
      places.refuse(path,
                    "a map is written from the student's side, under the role that it leads to: "
                    "teacher: {<the student's device>: <the teacher's>}");
    check_declared(recipe.roles, places, path, role);
    if (const std::string why = keeps_to_host(recipe, role); !why.empty())
      places.refuse(path, "has no effect: " + why + "; remove the map");
    if (map.empty())
      places.refuse(path, "joins no devices; write {<the student's device>: <the role's>}");
  }
}

// Requests that wait for weights must leave room for those that bring them.
void check_inflight_calls(const rpc::RpcOptions& rpc, const RecipePlaces& places) {
  constexpr int64_t kFewest = 16;
  if (rpc.max_inflight_calls < kFewest)
    places.refuse({"rpc", "max_inflight_calls"},
                  "too few: requests that wait for weights must leave room for those that bring "
                  "them; at least " +
                      std::to_string(kFewest));
}

}  // namespace

void check_rpc(const Recipe& recipe, const RecipePlaces& places) {
  check_device_maps(recipe, places);
  // Without other roles nobody is called, so most keys have no effect. Some still do: the ranks of
  // a role alone meet at an address, too, and each of them is in touch with the run's store and
  // launcher, by encrypted connections that heartbeats watch.
  const rpc::RpcOptions usual;
  rpc::RpcOptions others = recipe.rpc;
  others.encryption = usual.encryption;
  others.heartbeat_interval = usual.heartbeat_interval;
  others.peer_timeout = usual.peer_timeout;
  if (recipe.num_processes() > 1) others.bind = usual.bind;
  const std::string changed = changed_field(others);
  if (recipe.roles.size() == 1 && !changed.empty())
    places.refuse({"rpc", changed},
                  "has no effect: the only role speaks to no other; remove the key");
}

void check_ports(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
                 bool is_launched) {
  check_inflight_calls(recipe.rpc, places);

  // Each process listens at a port of its own on its host, so the fullest host needs the most. A
  // role alone has no peers.
  const std::optional<int64_t> ports = recipe.rpc.num_ports();
  const auto on_fullest_host = [&]() -> int64_t {
    switch (recipe.launch.backend) {
      case Backend::kLocal:
      case Backend::kSlurm: return recipe.num_processes();
      case Backend::kSsh: return std::ranges::max(launcher.processes_on_hosts(recipe));
      case Backend::kKubernetes: return 1;  // a pod
    }
    return 0;
  };
  const int64_t processes = on_fullest_host();
  if (is_launched && recipe.roles.size() > 1 && ports && *ports < processes)
    places.refuse({"rpc", "port"}, "is enough for " + std::to_string(*ports) + " of the " +
                                       std::to_string(processes) +
                                       " processes of a host, each of which listens at a port "
                                       "of its own; write a range of at least " +
                                       std::to_string(processes) + ", or 0: any that is free");
}

}  // namespace retort::recipes
