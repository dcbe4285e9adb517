#include "launch/commands/launch.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "launch/backends/placement.h"
#include "launch/backends/run_mark.h"
#include "launch/backends/shell_word.h"
#include "launch/backends/ssh_backend.h"
#include "launch/commands/commands.h"
#include "launch/commands/model_check.h"
#include "launch/commands/run_once.h"
#include "launch/supervision/run_folder.h"
#include "launch/supervision/secret_file.h"
#include "launch/supervision/supervisor.h"
#include "launch/yaml/recipe_file.h"
#include "parallel/device_module.h"
#include "recipes/external_roles.h"
#include "recipes/registry.h"
#include "recipes/run/checkpoint_folder.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// To listen where other hosts find it, unless the recipe says where; and with its host's cores.
void place_on_host(const recipes::Recipe& recipe, const Placement& placement,
                   const SshBackend& hosts, ProcessSpec& spec) {
  const size_t host = placement.host_of(spec.context.role, spec.context.rank);
  const int64_t wanted = recipe.roles.at(spec.context.role).world.threads;
  spec.host = recipe.launch.hosts[host].host;
  spec.context.threads =
      threads_per_process(wanted, hosts.facts(host).cores, placement.processes[host]);
  // What a launcher's own host inherits.
  if (const char* level = std::getenv("RETORT_LOG")) spec.env.emplace("RETORT_LOG", level);
  if (recipe.rpc.bind == rpc::RpcOptions().bind) spec.context.bind = hosts.facts(host).address;
}

// `hosts`: null where every rank is a child of this process.
std::vector<ProcessSpec> process_specs(const recipes::Recipe& recipe, const RunFolder& folder,
                                       const RunStart& start, const SshBackend* hosts) {
  const Placement placement = hosts ? place_processes(recipe) : Placement();
  const int64_t processes = recipe.num_processes();
  std::vector<ProcessSpec> specs;
  for (const auto& [name, role] : recipe.roles) {
    for (int64_t rank = 0; rank < role.world.world_size(); ++rank) {
      ChildContext context = rank_context_of(recipe, start, name, rank);
      context.threads = threads_per_process(role.world.threads, processes);
      ProcessSpec spec = child_spec(recipe, folder, std::move(context));
      if (hosts) place_on_host(recipe, placement, *hosts, spec);
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

RunFolderMode mode_of(const LaunchCommand& command) {
  if (command.resume) return RunFolderMode::kResume;
  return command.overwrite ? RunFolderMode::kOverwrite : RunFolderMode::kFresh;
}

// Connects to the hosts of `launch.hosts`; null where the run has none.
std::unique_ptr<SshBackend> connect_hosts(const recipes::Recipe& recipe, const RunFolder& folder,
                                          const SignalCatcher& signals) {
  if (recipe.launch.backend == recipes::Backend::kLocal) return nullptr;
  constexpr Duration kLeave{15'000};
  const std::string mark = make_run_mark(folder.path(), kLeave);
  fs::create_directories(folder.logs());
  std::vector<HostLinkOptions> hosts;
  for (const recipes::HostOptions& host : recipe.launch.hosts)
    hosts.push_back({.host = host,
                     .ssh = recipe.launch.ssh,
                     .run_folder = folder.path(),
                     .mark = mark,
                     .log = folder.logs() / ("host-" + host.host + ".log"),
                     .interval = recipe.rpc.heartbeat_interval,
                     .limit = recipe.rpc.peer_timeout});
  return std::make_unique<SshBackend>(std::move(hosts), signals);
}

// Where the run's store listens: where the recipe says, or else where the hosts reach this one.
std::string store_bind(const recipes::Recipe& recipe, const SshBackend* hosts) {
  if (recipe.launch.rendezvous.address) return *recipe.launch.rendezvous.address;
  const bool is_said = recipe.rpc.bind != rpc::RpcOptions().bind;
  return hosts && !is_said ? hosts->launcher_address() : recipe.rpc.bind;
}

// One start of the run, to its end.
StartEnd start_run(const LaunchCommand& command, const recipes::Recipe& recipe, RunFolderMode mode,
                   int64_t restarts_left, SignalCatcher& signals) {
  // Hosts are asked for in the folder, and say where the store is to listen.
  const RunFolder folder = open_run_folder(recipe, mode);
  const std::unique_ptr<SshBackend> hosts = connect_hosts(recipe, folder, signals);
  const auto& secret_file = recipe.launch.secret_file;
  const rpc::RendezvousAccess access{
      .run = folder.path().filename().string(),
      .secret = secret_file ? read_secret(*secret_file) : random_hex(32),
      .encryption = recipe.rpc.encryption};
  rpc::RendezvousServer store(
      access, store_bind(recipe, hosts.get()), std::to_string(recipe.launch.rendezvous.port),
      {.interval = recipe.rpc.heartbeat_interval, .limit = recipe.rpc.peer_timeout});

  StartOptions options{.recipe = recipe, .folder = folder, .store = store, .access = access};
  options.resume = mode == RunFolderMode::kResume;
  options.restarts_left = restarts_left;
  options.backend = hosts.get();
  options.processes = [&](const RunStart& start) {
    return process_specs(recipe, folder, start, hosts.get());
  };
  options.last_line = [&](const SupervisorResult& result, const fs::path& path) {
    return last_line(command, result, path);
  };
  return run_once(options, signals);
}

}  // namespace

void refuse_to_overwrite_inputs(const recipes::Recipe& recipe) {
  const fs::path folder = fs::weakly_canonical(fs::absolute(recipe.output_dir));
  const auto check = [&](const std::string& what, const std::string& path) {
    if (path.empty()) return;
    const fs::path inside = fs::weakly_canonical(fs::absolute(path)).lexically_relative(folder);
    if (!inside.empty() && *inside.begin() != "..")
      throw Error(
          ErrorCode::kInvalidArgument,
          what + ": '" + path + "' lies in output_dir '" + recipe.output_dir +
              "', which --overwrite would empty; choose another output_dir, or move it away");
  };
  for (const auto& [name, role] : recipe.roles) {
    check("roles." + name + ".model", role.model);
    if (!role.external) continue;
    check("roles." + name + ".external.api_key_file", role.external->api_key_file);
    check("roles." + name + ".external.ca_file", role.external->ca_file);
  }
  for (size_t i = 0; i < recipe.rewards.size(); ++i)
    check("rewards[" + std::to_string(i) + "].template",
          recipe.rewards[i].template_file.value_or(""));
  for (const auto& source : recipe.data.train)
    check("data.train", source.path);
  for (const auto& source : recipe.data.eval)
    check("data.eval", source.path);
  for (const recipes::InputPath& input : recipes::recipe_type(recipe).inputs(recipe))
    check(input.key, input.path);
}

// A user who compares two runs must know which numbers may differ.
void note_engines(const recipes::Recipe& recipe) {
  for (const std::string& role : recipes::roles_of_engines(recipe))
    std::cerr << "note: roles." << role
              << (recipe.is_generator(role)
                      ? " draws other samples in each run, also after --resume"
                  : recipes::is_asked_in_words(recipe, role)
                      ? " may answer in other words from run to run"
                      : "'s numbers differ in their last bits from run to run")
              << ": they are an engine's" << std::endl;
}

int run_launch(const LaunchCommand& command) {
  std::vector<std::string> warnings;
  const recipes::Recipe recipe = load_recipe(
      command.recipe, command.overrides, {.cuda = parallel::DeviceModule::present()}, &warnings);
  if (recipe.launch.log_format == LogFormat::kJson) set_log_format(LogFormat::kJson);
  for (const std::string& warning : warnings)
    std::cerr << "warning: " << warning << "\n";
  note_engines(recipe);
  if (command.overwrite) refuse_to_overwrite_inputs(recipe);
  check_models(recipe);

  // From here a signal means: stop cleanly. The catcher is leaked on purpose: a signal that comes
  // after the work is done must not turn a good exit into a death by signal.
  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});
  const int64_t most = recipe.launch.max_restarts;
  const auto start = [&](RunFolderMode mode, int64_t restarts_left) {
    return start_run(command, recipe, mode, restarts_left, signals);
  };
  StartEnd end = start(mode_of(command), most);
  for (int64_t restart = 1; end.goes_on; ++restart) {
    std::cerr << "note: the run goes on from its last checkpoint, " << restart << " of " << most
              << " times (launch.max_restarts)" << std::endl;
    end = start(RunFolderMode::kResume, most - restart);
  }
  return end.exit_code;
}

std::string last_line(const LaunchCommand& command, const SupervisorResult& result,
                      const fs::path& run_folder) {
  if (result.cause || result.killed) return "";
  if (!result.stopped_early) {
    const bool done = result.exit_code == 0 || result.exit_code == kExitInterrupted;
    return done ? "done: " + (run_folder / "final").string() : "";
  }

  // Without a checkpoint --resume begins at the first step, in the folder that is there.
  std::string line = recipes::latest_checkpoint(run_folder)
                         ? "stopped; continue with: "
                         : "stopped before a checkpoint was complete; begin again with: ";
  line += "retort launch " + shell_word(command.recipe);
  line += " --resume";
  for (const std::string& one : command.overrides)
    line += " " + shell_word(one);
  return line;
}

}  // namespace retort::launch
