#include "launch/backends/rank_spec.h"

#include <utility>

#include "launch/backends/role_variables.h"
#include "parallel/layout.h"

namespace retort::launch {
namespace fs = std::filesystem;

ChildContext rank_context_of(const recipes::Recipe& recipe, const RunStart& start,
                             const std::string& role, int64_t rank) {
  return {.run = start.run,
          .role = role,
          .rank = rank,
          .incarnation = start.incarnation,
          .store_host = start.store_host,
          .store_port = start.store_port,
          .secret = start.secret,
          .encryption = start.encryption,
          .bind = recipe.rpc.bind,
          .cuda = recipe.roles.at(role).world.device == parallel::Device::kCuda,
          .heartbeat_interval = recipe.rpc.heartbeats(recipe.num_processes()),
          .peer_timeout = recipe.rpc.peer_timeout,
          .resume = start.resume,
          .writes_cache = start.writes_cache,
          .outlives_launcher = recipe.launch.launcher_lost == recipes::LauncherLost::kContinue};
}

std::vector<std::string> role_arguments(const ChildContext& context, const fs::path& run_folder) {
  return {"role",
          "--run",
          context.run,
          "--role",
          context.role,
          "--rank",
          std::to_string(context.rank),
          "--run-folder",
          run_folder.string()};
}

ProcessSpec child_spec(const recipes::Recipe& recipe, const RunFolder& folder,
                       ChildContext context) {
  const recipes::RoleOptions& role = recipe.roles.at(context.role);
  ProcessSpec spec;
  spec.context = std::move(context);
  spec.driving = spec.context.role == recipes::Recipe::kDrivingRole;
  if (!spec.driving) {
    // The ranks of one dp coordinate share a world, and so are lost and started again together.
    const int64_t replica = parallel::coordinate_of(role.world, spec.context.rank).dp;
    spec.replica = spec.context.role + " replica " + std::to_string(replica);
    spec.restarts = role.restarts;
  }

  // The program starts itself. The secret comes on its stdin, because every user of the host can
  // read the arguments of a process.
  spec.arguments = role_arguments(spec.context, folder.path());
  spec.env = role_variables(recipe, role);
  return spec;
}

}  // namespace retort::launch
