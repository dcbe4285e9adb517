#include "launch/commands/launch.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "launch/backends/child_process.h"
#include "launch/backends/host_places.h"
#include "launch/backends/run_mark.h"
#include "launch/backends/shell_word.h"
#include "launch/backends/ssh_backend.h"
#include "launch/commands/commands.h"
#include "launch/commands/fit_to_hosts.h"
#include "launch/commands/run_hosts.h"
#include "launch/commands/run_once.h"
#include "launch/commands/run_store.h"
#include "launch/commands/submit.h"
#include "launch/join/meeting.h"
#include "launch/kubernetes/dry_run.h"
#include "launch/slurm/run.h"
#include "launch/slurm/texts.h"
#include "launch/supervision/launcher_address.h"
#include "launch/supervision/run_folder.h"
#include "launch/supervision/signal_catcher.h"
#include "launch/supervision/stderr_writer.h"
#include "launch/supervision/supervisor.h"
#include "launch/yaml/recipe_file.h"
#include "launch/yaml/role_values.h"
#include "parallel/device_module.h"
#include "recipes/external_roles.h"
#include "recipes/input_paths.h"
#include "recipes/registry.h"
#include "recipes/rules/models.h"
#include "recipes/run/checkpoint_folder.h"
#include "rpc/listen_address.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// For what is left of a run that has just ended.
constexpr Duration kEndOfRun{15'000};
constexpr Duration kLocksOfALostHost{120'000};

// One start of the run.
struct Start {
  RunFolderMode mode = RunFolderMode::kFresh;
  int64_t restarts_left = 0;
  bool by_itself = false;  // nobody asked for it: the one before has failed
};

// Processes of a host that was cut off hold the folder until they have ended by themselves; those
// of one without power until the file server takes their locks away (NFS: 90 s by default).
RunFolder open_folder(const recipes::Recipe& recipe, const Start& how,
                      const RunFolder::WhenLocked& when_locked) {
  if (!how.by_itself) return open_run_folder(recipe, how.mode, kEndOfRun, when_locked);
  const Duration until_ended = recipe.launch.stop_timeout + recipe.rpc.peer_timeout;
  return open_run_folder(recipe, how.mode, std::max(until_ended, kLocksOfALostHost) + kEndOfRun,
                         when_locked);
}

using StorePtr = std::unique_ptr<rpc::RendezvousServer>;

StorePtr make_store(const recipes::Recipe& recipe, const rpc::RendezvousAccess& access,
                    const std::string& bind) {
  return StorePtr(
      new rpc::RendezvousServer(serve_store(recipe, access, bind, recipe.launch.rendezvous.port)));
}

// `places`: null where every rank is a child of this process.
std::vector<ProcessSpec> process_specs(const recipes::Recipe& recipe, const RunFolder& folder,
                                       const RunStart& start, const HostPlaces* places) {
  const int64_t processes = recipe.num_processes();
  std::vector<ProcessSpec> specs;
  for (const auto& [name, role] : recipe.roles) {
    for (int64_t rank = 0; rank < role.world.world_size(); ++rank) {
      ChildContext context = rank_context_of(recipe, start, name, rank);
      context.threads = threads_per_process(role.world.threads, processes);
      context.ranks_on_host = all_ranks(recipe);
      ProcessSpec spec = child_spec(recipe, folder, std::move(context));
      if (places) places->place(spec);
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

// One start of the run by steps of a job, to its end.
StartEnd start_in_job(const LaunchCommand& command, const recipes::Recipe& recipe,
                      const SlurmJob& job, const Start& how, SignalCatcher& signals) {
  const std::string bind = slurm_store_bind(recipe, job);
  const rpc::RendezvousAccess access{
      .run = new_run_id(run_folder_of(recipe)),
      .secret = run_secret(recipe),
      .encryption = rpc::settled_encryption(recipe.rpc.encryption, bind),
      .meeting = kMeetingRun};
  StorePtr opened;
  const RunFolder folder = open_folder(recipe, how, [&] {
    opened = make_store(recipe, access, bind);
    return std::set<fs::path>{};
  });
  const StorePtr store = std::move(opened);
  SlurmRun run(recipe, folder, job, access, signals);

  StartOptions options{.recipe = recipe, .folder = folder, .store = *store, .access = access};
  options.resume = how.mode == RunFolderMode::kResume;
  options.restarts_left = how.restarts_left;
  options.backend = &run.backend();
  options.processes = [&](const RunStart& start) { return run.processes(start); };
  options.last_line = [&](const SupervisorResult& result, const fs::path& path) {
    return last_line(command, result, path);
  };
  return run_once(options, signals);
}

// A run that goes on by itself does so on the hosts that are left.
recipes::Recipe recipe_for(const recipes::Recipe& recipe, const SshBackend& hosts) {
  for (const size_t host : hosts.lost())
    std::cerr << "note: " << hosts.why_lost(host) << "; the run goes on without it" << std::endl;
  recipes::Recipe result = fit_to_hosts(recipe, hosts.lost());
  const int64_t before = recipe.student().world.dp, now = result.student().world.dp;
  if (now == before) return result;
  std::cerr << "note: roles.student.world.dp is " << now << " instead of " << before
            << " (launch.min_dp), and train.gradient_accumulation_steps "
            << result.train.gradient_accumulation_steps << std::endl;
  return result;
}

// What a start has besides its folder. Hosts are asked in the folder, which they must see, and say
// where the store is to listen.
struct Surroundings {
  std::unique_ptr<SshBackend> hosts;  // null where every rank is a child of this process
  StorePtr store;
  recipes::Recipe recipe = {};  // for the hosts that are there
};

Surroundings find_surroundings(const recipes::Recipe& written, const rpc::RendezvousAccess& access,
                               HostsWanted wanted, SignalCatcher& signals) {
  Surroundings found;
  if (written.launch.backend == recipes::Backend::kSsh) {
    const fs::path folder = run_folder_of(written);
    found.hosts = connect_hosts(written, folder, make_run_mark(folder, kEndOfRun), wanted, signals);
  }
  found.recipe = found.hosts ? recipe_for(written, *found.hosts) : written;
  found.store = make_store(found.recipe, access, store_bind(found.recipe, found.hosts.get()));
  return found;
}

// One start of the run, to its end.
StartEnd start_run(const LaunchCommand& command, const recipes::Recipe& written, const Start& how,
                   SignalCatcher& signals) {
  const rpc::RendezvousAccess access{.run = new_run_id(run_folder_of(written)),
                                     .secret = run_secret(written),
                                     .encryption = written.rpc.encryption};
  const bool has_hosts = written.launch.backend == recipes::Backend::kSsh;
  const HostsWanted wanted = how.by_itself ? HostsWanted::kThoseLeft : HostsWanted::kAll;
  // Its port is free and its hosts answer, or the run that --overwrite replaces stays. Else hosts
  // are asked when the folder has the run's recipe, so that --resume begins what they kept waiting.
  bool has_asked = false;
  Surroundings first;
  const RunFolder folder = open_folder(written, how, [&] {
    const bool replaces = how.mode == RunFolderMode::kOverwrite &&
                          fs::exists(run_folder_of(written) / kResolvedRecipe);
    has_asked = !has_hosts || replaces;
    if (!has_asked) return std::set<fs::path>{};
    first = find_surroundings(written, access, wanted, signals);
    return has_hosts ? files_of_hosts(written) : std::set<fs::path>{};
  });
  // Declared after the folder: where one of the next steps fails, hosts end before it is free.
  Surroundings found = std::move(first);
  fs::remove(folder.path() / kLauncherAddress);  // of a start that is over
  keep_run_id(folder.path(), access.run);
  const LauncherLock lock(folder.path());
  if (!has_asked) found = find_surroundings(written, access, wanted, signals);

  // They end before the folder is free for others.
  const std::unique_ptr<SshBackend> hosts = std::move(found.hosts);
  const StorePtr store = std::move(found.store);
  const recipes::Recipe recipe = std::move(found.recipe);
  if (recipe.student().world.dp != written.student().world.dp) describe_run(recipe, folder);
  std::optional<HostPlaces> places;
  if (hosts) places.emplace(recipe, *hosts);

  StartOptions options{.recipe = recipe, .folder = folder, .store = *store, .access = access};
  options.resume = how.mode == RunFolderMode::kResume;
  options.writes_cache = !command.cache.empty();
  options.restarts_left = how.restarts_left;
  options.backend = hosts.get();
  options.processes = [&](const RunStart& start) {
    return process_specs(recipe, folder, start, options.places);
  };
  options.places = places ? &*places : nullptr;
  options.last_line = [&](const SupervisorResult& result, const fs::path& path) {
    return last_line(command, result, path);
  };
  return run_once(options, signals);
}

// The run that writes a cache: its student holds no model and trains nothing, so that its layout is
// the ranks that form batches.
void fit_to_cache(recipes::Recipe& recipe, const std::string& folder) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, "retort cache: " + message);
  };
  const auto backend = recipe.launch.backend;
  if (backend != recipes::Backend::kLocal && backend != recipes::Backend::kSsh)
    refuse("launch.backend: " + std::string(enum_name(backend)) +
           " starts runs that train; write local or ssh");
  if (recipe.launch.launcher_lost == recipes::LauncherLost::kContinue)
    refuse("launch.launcher_lost: continue is for runs that train; write stop");

  recipe.output_dir = folder;
  recipes::RoleOptions& student = recipe.roles.at(recipes::Recipe::kDrivingRole);
  if (student.world.device == parallel::Device::kCuda) student.env.clear();
  student.devices.clear();
  student.world = {.dp = student.world.dp, .threads = student.world.threads};
  recipe.rpc.device_maps.clear();
  recipe.train.max_steps.reset();
  recipe.train.num_train_epochs = 1;
  recipe.launch.max_restarts = 0;
  recipe.launch.min_dp.reset();
}

// The overrides as a shell reads them. One with values of variables, which may be keys, is left out
// and named behind, where pasting it does nothing: a stand-in would be taken for the value.
std::string overrides_text(const std::vector<std::string>& overrides) {
  std::string words, left_out;
  for (const std::string& one : overrides)
    if (has_role_values(one))
      left_out += (left_out.empty() ? "" : ", ") + one.substr(0, one.find('='));
    else
      words += " " + shell_word(one);
  if (left_out.empty()) return words;
  return words + "  # and with " + left_out + ", not shown here: give it again";
}

std::string last_line_of_cache(const LaunchCommand& command, const SupervisorResult& result) {
  if (!result.stopped_early) return "done: " + command.cache;
  return "stopped; go on with: retort cache " + shell_word(command.recipe) + " --output " +
         shell_word(command.cache) + overrides_text(command.overrides);
}

std::string resume_command(const LaunchCommand& command) {
  return "retort launch " + shell_word(command.recipe) +
         (command.submitted ? " --submit --resume" : " --resume") +
         overrides_text(command.overrides);
}

// The starts that follow one that ended like this; the exit code of the last.
int go_on(const recipes::Recipe& recipe, StartEnd end,
          const std::function<StartEnd(const Start&)>& start) {
  const int64_t most = recipe.launch.max_restarts;
  for (int64_t restart = 1; end.goes_on; ++restart) {
    std::cerr << "note: the run goes on from its last checkpoint, " << restart << " of " << most
              << " times (launch.max_restarts)" << std::endl;
    end =
        start({.mode = RunFolderMode::kResume, .restarts_left = most - restart, .by_itself = true});
  }
  return end.exit_code;
}

}  // namespace

void refuse_to_overwrite_inputs(const recipes::Recipe& recipe) {
  const fs::path folder = fs::weakly_canonical(fs::absolute(recipe.output_dir));
  for (const recipes::InputPath& input : recipes::input_paths(recipe)) {
    const fs::path inside =
        fs::weakly_canonical(fs::absolute(input.path)).lexically_relative(folder);
    if (!inside.empty() && *inside.begin() != "..")
      throw Error(ErrorCode::kInvalidArgument,
                  input.key + ": '" + input.path + "' lies in output_dir '" + recipe.output_dir +
                      "', which --overwrite would empty; choose another output_dir, or move it "
                      "away");
  }
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

recipes::Recipe load_for_launch(const LaunchCommand& command) {
  std::vector<std::string> warnings;
  recipes::Recipe recipe =
      load_recipe(command.recipe, command.overrides,
                  {.cuda = command.dry_run || parallel::DeviceModule::present()}, &warnings);
  if (recipe.launch.log_format == LogFormat::kJson) set_log_format(LogFormat::kJson);
  for (const std::string& warning : warnings)
    std::cerr << "warning: " << warning << "\n";
  note_engines(recipe);
  // The models of pods are not here.
  if (recipe.launch.backend == recipes::Backend::kKubernetes) return recipe;
  if (command.overwrite) refuse_to_overwrite_inputs(recipe);
  recipes::check_models(recipe);
  check_min_dp(recipe);
  return recipe;
}

int run_launch(const LaunchCommand& command) {
  if (command.submit || command.dry_run)
    release_signals(kEndSignals);
  else
    write_stderr_in_background();
  if (command.submit) return run_submit(command);
  const recipes::Recipe recipe = load_for_launch(command);
  if (command.dry_run || recipe.launch.backend == recipes::Backend::kKubernetes)
    return run_dry(command, recipe);
  std::optional<SlurmJob> job;
  if (recipe.launch.backend == recipes::Backend::kSlurm)
    job = check_slurm_job(recipe, command.submitted);

  // Nothing has been made or removed: one who has asked to end by now gets what he asked for. Not
  // by the signal itself, which the kernel drops where this is the first process of a container.
  if (const int signal = held_signal(kEndSignals); signal != 0) return 128 + signal;
  // From here a signal means: stop cleanly. The catcher is leaked on purpose: a signal that comes
  // after the work is done must not turn a good exit into a death by signal.
  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});
  const Start first{.mode = run_folder_mode(command.resume, command.overwrite),
                    .restarts_left = recipe.launch.max_restarts};
  if (!job)
    return go_on_by_itself(command, recipe, start_run(command, recipe, first, signals), signals);

  // A job whose node is lost does not go on where it is, but is queued again.
  const auto start = [&](const Start& how) {
    StartEnd end = start_in_job(command, recipe, *job, how, signals);
    const bool may_queue = command.submitted && recipe.launch.slurm.requeue;
    if (may_queue && end.lost_process && (end.progressed || !job->was_requeued))
      end = {.exit_code = kExitQueueAgain};
    return end;
  };
  return go_on(recipe, start(first), start);
}

int go_on_by_itself(const LaunchCommand& command, const recipes::Recipe& recipe, StartEnd end,
                    SignalCatcher& signals) {
  return go_on(recipe, end,
               [&](const Start& how) { return start_run(command, recipe, how, signals); });
}

int run_cache(const LaunchCommand& command) {
  write_stderr_in_background();
  recipes::Recipe recipe = load_for_launch(command);
  recipes::recipe_type(recipe).check_cache(recipe);
  fit_to_cache(recipe, command.cache);
  const fs::path folder = run_folder_of(recipe);
  const bool begun = fs::is_regular_file(folder / kResolvedRecipe);
  if (begun && fs::exists(folder / "metrics.jsonl"))
    throw Error(ErrorCode::kInvalidArgument, "--output: " + folder.string() +
                                                 " holds a run that trains, and no cache; choose "
                                                 "another folder");
  const Start start{.mode = begun ? RunFolderMode::kResume : RunFolderMode::kFresh};
  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});
  return start_run(command, recipe, start, signals).exit_code;
}

std::string last_line(const LaunchCommand& command, const SupervisorResult& result,
                      const fs::path& run_folder) {
  if (result.cause) return "";
  if (!command.cache.empty()) return result.killed ? "" : last_line_of_cache(command, result);
  if (result.killed) {
    const bool saved = recipes::latest_checkpoint(run_folder).has_value();
    return (saved ? "killed; go on from the last checkpoint with: "
                  : "killed before a checkpoint was complete; begin again with: ") +
           resume_command(command);
  }
  if (!result.stopped_early) {
    const bool done = result.exit_code == 0 || result.exit_code == kExitInterrupted;
    const std::string but =
        result.warning.empty() ? "done: " : "done, but " + result.warning + ": ";
    return done ? but + (run_folder / "final").string() : "";
  }

  // Without a checkpoint --resume begins at the first step, in the folder that is there.
  std::string line = recipes::latest_checkpoint(run_folder)
                         ? "stopped; continue with: "
                         : "stopped before a checkpoint was complete; begin again with: ";
  if (result.exit_code == kExitDiverged)
    line = "stopped, because " + result.warning + "; to go on all the same: ";
  return line + resume_command(command);
}

}  // namespace retort::launch
