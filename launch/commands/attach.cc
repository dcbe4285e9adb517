#include "launch/commands/attach.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/host_name.h"
#include "launch/backends/child_process.h"
#include "launch/backends/host_places.h"
#include "launch/backends/rank_spec.h"
#include "launch/backends/run_mark.h"
#include "launch/commands/launch.h"
#include "launch/commands/run_hosts.h"
#include "launch/commands/run_once.h"
#include "launch/commands/run_store.h"
#include "launch/supervision/driving_lock.h"
#include "launch/supervision/launcher_address.h"
#include "launch/supervision/signal_catcher.h"
#include "launch/supervision/status_file.h"
#include "launch/supervision/stderr_writer.h"
#include "launch/yaml/recipe_file.h"
#include "parallel/device_module.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

using recipes::Recipe;

[[noreturn]] void refuse_to_attach(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "--attach: " + why);
}

// Before anything is asked or written.
void check_run(const Recipe& recipe, const RunStatus& status, const fs::path& folder) {
  if (recipe.launch.launcher_lost != recipes::LauncherLost::kContinue)
    refuse_to_attach("the processes of " + folder.string() +
                     " end with their launcher (launch.launcher_lost: stop); --resume goes on from "
                     "its newest checkpoint");
  if (status.ended())
    refuse_to_attach("the run in " + folder.string() + " has ended, with exit code " +
                     std::to_string(*status.exit_code));
  const bool is_local = recipe.launch.backend == recipes::Backend::kLocal;
  if (is_local && status.launcher_host != host_name())
    refuse_to_attach("the run in " + folder.string() + " is on host " + status.launcher_host +
                     ", this one is " + host_name());
}

// Where the processes are, as the launcher before has written.
Placement placement_of(const Recipe& recipe, const RunStatus& status) {
  const std::vector<recipes::HostOptions>& hosts = recipe.launch.hosts;
  Placement placement;
  placement.processes.resize(hosts.size());
  for (const auto& [name, role] : recipe.roles)
    placement.hosts[name].resize(static_cast<size_t>(role.world.world_size()));
  for (const RunStatus::Process& process : status.processes) {
    const auto host = std::ranges::find(hosts, process.host, &recipes::HostOptions::host);
    if (host == hosts.end()) refuse_to_attach("the recipe has no host " + process.host);
    const auto index = static_cast<size_t>(host - hosts.begin());
    placement.hosts.at(process.role).at(static_cast<size_t>(process.rank)) = index;
    ++placement.processes[index];
  }
  return placement;
}

// Each in its life of now; in the next one it is a child of this launcher or of a host's.
std::vector<ProcessSpec> attached_specs(const Recipe& recipe, const RunFolder& folder,
                                        const RunStart& start, const RunStatus& status,
                                        const HostPlaces* places) {
  std::vector<ProcessSpec> specs;
  for (const RunStatus::Process& process : status.processes) {
    ChildContext context = rank_context_of(recipe, start, process.role, process.rank);
    context.restart = context.life = process.restarts;
    context.threads =
        threads_per_process(recipe.roles.at(process.role).world.threads, recipe.num_processes());
    context.ranks_on_host = all_ranks(recipe);
    ProcessSpec spec = child_spec(recipe, folder, std::move(context));
    if (places) places->place(spec);
    spec.joined = JoinedSpec{.pid = process.pid, .is_replaceable = true};
    specs.push_back(std::move(spec));
  }
  return specs;
}

StartEnd attach(const LaunchCommand& command, const Recipe& recipe, const RunFolder& folder,
                const RunStatus& status, SignalCatcher& signals) {
  std::unique_ptr<SshBackend> hosts;
  std::optional<HostPlaces> places;
  if (recipe.launch.backend == recipes::Backend::kSsh) {
    const std::string mark = read_run_mark(folder.path()).text;
    hosts = connect_hosts(recipe, folder.path(), mark, HostsWanted::kThoseLeft, signals);
    places.emplace(recipe, *hosts, placement_of(recipe, status));
  }

  const rpc::RendezvousAccess access{.run = read_run_id(folder.path()),
                                     .secret = run_secret(recipe),
                                     .encryption = recipe.rpc.encryption};
  rpc::RendezvousServer store =
      serve_store(recipe, access, store_bind(recipe, hosts.get()), recipe.launch.rendezvous.port);
  announce_launcher(folder.path(), store.host(), store.port());

  StartOptions options{.recipe = recipe, .folder = folder, .store = store, .access = access};
  options.attached = true;
  options.restarts_left = recipe.launch.max_restarts;
  options.backend = hosts.get();
  options.processes = [&](const RunStart& start) {
    return attached_specs(recipe, folder, start, status, options.places);
  };
  options.places = places ? &*places : nullptr;
  options.last_line = [&](const SupervisorResult& result, const fs::path& path) {
    return last_line(command, result, path);
  };
  return run_once(options, signals);
}

}  // namespace

int run_attach(const std::string& run_folder) {
  write_stderr_in_background();
  const fs::path path = fs::absolute(run_folder).lexically_normal();
  const RunStatus status = read_run_status(path);
  const LaunchCommand command{.recipe = (path / kResolvedRecipe).string()};
  const LoadOptions options{.cuda = parallel::DeviceModule::present(), .check_files = false};
  const Recipe recipe = load_recipe(command.recipe, {}, options);
  if (recipe.launch.log_format == LogFormat::kJson) set_log_format(LogFormat::kJson);
  check_run(recipe, status, path);

  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});  // as run_launch has it
  StartEnd end;
  {
    const LauncherLock lock(path);
    const RunFolder folder(path, RunFolderMode::kAttach);
    if (!anyone_drives(path))
      refuse_to_attach("no process of " + path.string() + " trains; --resume goes on from its " +
                       "newest checkpoint");
    end = attach(command, recipe, folder, status, signals);
  }
  return go_on_by_itself(command, recipe, end, signals);
}

}  // namespace retort::launch
