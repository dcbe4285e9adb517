#include "launch/commands/launch.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "launch/backends/role_variables.h"
#include "launch/commands/commands.h"
#include "launch/commands/model_check.h"
#include "launch/supervision/metrics_endpoint.h"
#include "launch/supervision/observers.h"
#include "launch/supervision/progress.h"
#include "launch/supervision/run_folder.h"
#include "launch/supervision/status_file.h"
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

// What the processes of one start have in common.
struct RunStart {
  std::string run;
  std::string secret;
  int64_t incarnation = 0;
  bool resume = false;
};

std::vector<ProcessSpec> process_specs(const recipes::Recipe& recipe, const RunFolder& folder,
                                       const RunStart& start, const rpc::RendezvousServer& store) {
  const int64_t processes = recipe.num_processes();
  std::vector<ProcessSpec> specs;
  for (const auto& [name, role] : recipe.roles) {
    for (int64_t rank = 0; rank < role.world.world_size(); ++rank) {
      ProcessSpec spec;
      spec.driving = name == recipes::Recipe::kDrivingRole;
      spec.context = {.run = start.run,
                      .role = name,
                      .rank = rank,
                      .incarnation = start.incarnation,
                      .store_host = store.host(),
                      .store_port = store.port(),
                      .secret = start.secret,
                      .encryption = recipe.rpc.encryption,
                      .heartbeat_interval = recipe.rpc.heartbeat_interval,
                      .peer_timeout = recipe.rpc.peer_timeout,
                      .resume = start.resume,
                      .threads = threads_per_process(role.world.threads, processes)};

      if (!spec.driving) {
        const int64_t replica = parallel::coordinate_of(role.world, rank).dp;
        spec.replica = name + " replica " + std::to_string(replica);
        spec.restarts = role.restarts;
      }

      // The program starts itself; its secret comes on its stdin, not as an argument.
      spec.arguments = {"role",
                        "--run",
                        start.run,
                        "--role",
                        name,
                        "--rank",
                        std::to_string(rank),
                        "--run-folder",
                        folder.path().string()};

      spec.env = role_variables(recipe, role);
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

// Each start of a run has its own number, part of every key in the store.
int64_t next_incarnation(const fs::path& run_folder) {
  const fs::path file = run_folder / ".incarnation";
  const int64_t number = fs::exists(file) ? std::stoll(read_file(file)) + 1 : 1;
  write_file_atomically(file, std::to_string(number) + "\n");
  return number;
}

RunFolderMode mode_of(const LaunchCommand& command) {
  if (command.resume) return RunFolderMode::kResume;
  return command.overwrite ? RunFolderMode::kOverwrite : RunFolderMode::kFresh;
}

// --overwrite removes what a run left in its folder; nothing that this run is about to read may lie
// there.
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

// As one word of a shell's command line: in quotes if it holds anything that a shell may read.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;

  // Nothing ends single quotes but a single quote, which therefore stands outside of them.
  std::string quoted = "'";
  for (const char c : text)
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// What went wrong goes to stderr; how a run that did not fail goes on, or where its result is, to
// stdout.
void print_end(const LaunchCommand& command, const SupervisorResult& result,
               const RunFolder& folder) {
  for (const std::string& remark : result.remarks)
    std::cerr << "note: " << remark << "\n";
  if (const std::string report = result.report(); !report.empty()) std::cerr << report << "\n";

  if (const std::string line = last_line(command, result, folder.path()); !line.empty())
    std::printf("%s\n", line.c_str());
}

// Whether a run that ended so may go on by itself from its last checkpoint: not after a wrong
// recipe, and not when somebody asked it to stop.
bool may_resume(const SupervisorResult& result, const recipes::Recipe& recipe) {
  return result.cause && result.signal == 0 && result.exit_code != 2 &&
         recipes::latest_checkpoint(fs::absolute(recipe.output_dir).lexically_normal());
}

// A judge's question belongs to the run: it is kept there, and a run goes on with the same one.
void keep_templates(const recipes::Recipe& recipe, const fs::path& run_folder) {
  for (size_t i = 0; i < recipe.rewards.size(); ++i) {
    const auto& file = recipe.rewards[i].template_file;
    if (!file) continue;
    const fs::path kept = run_folder / "templates" / (std::to_string(i) + ".jinja");
    const std::string text = read_file(*file);
    fs::create_directories(kept.parent_path());
    if (!fs::exists(kept)) write_file_atomically(kept, text);
    if (read_file(kept) != text)
      throw Error(ErrorCode::kMismatch,
                  "rewards[" + std::to_string(i) + "].template: '" + *file +
                      "' is not the one that the run began with, which is kept as " +
                      kept.string() + "; put it back, or begin a new run");
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

// How one start of the run ended.
struct StartEnd {
  int exit_code = 0;
  bool goes_on = false;
};

// One start of the run, to its end. `restarts_left`: how often the run may go on by itself after
// it.
StartEnd run_once(const LaunchCommand& command, const recipes::Recipe& recipe, RunFolderMode mode,
                  int64_t restarts_left, SignalCatcher& signals) {
  const RunFolder folder(fs::absolute(recipe.output_dir).lexically_normal(), mode);
  folder.write_resolved_recipe(resolved_yaml(recipe));
  write_file_atomically(folder.path() / "plan.json", plan_json(recipe) + "\n");
  keep_templates(recipe, folder.path());

  // Where the processes of this start find each other, and where training goes on.
  const bool resumes = mode == RunFolderMode::kResume;
  const RunStart start{.run = folder.path().filename().string(),
                       .secret = random_hex(32),
                       .incarnation = next_incarnation(folder.path()),
                       .resume = resumes};
  rpc::RendezvousServer store(
      {.run = start.run, .secret = start.secret, .encryption = recipe.rpc.encryption},
      recipe.rpc.bind, "0",
      {.interval = recipe.rpc.heartbeat_interval, .limit = recipe.rpc.peer_timeout});
  const int64_t start_step = folder.resume_from() ? folder.resume_from()->step : 0;
  if (resumes)
    std::printf("resuming %s at step %lld\n", folder.path().c_str(),
                static_cast<long long>(start_step));

  // Progress writes to the descriptor, past stdout's buffer.
  std::fflush(stdout);
  Progress progress({.fd = STDOUT_FILENO,
                     .live = ::isatty(STDOUT_FILENO) != 0,
                     .title = recipe.recipe.text + " -> " + recipe.output_dir,
                     .metrics = folder.metrics(),
                     .start_step = start_step,
                     .max_steps = recipe.train.max_steps,
                     .num_epochs = recipe.train.num_train_epochs});
  StatusFile status({.path = folder.path() / kStatusFile,
                     .run = start.run,
                     .recipe = recipe.recipe.text,
                     .reproducible = recipes::roles_of_engines(recipe).empty(),
                     .start_step = start_step,
                     .max_steps = recipe.train.max_steps,
                     .progress = &progress.state()});
  Observers observers({&progress, &status});
  std::optional<MetricsEndpoint> metrics;
  if (recipe.launch.metrics_port) {
    metrics.emplace(store.host(), static_cast<uint16_t>(*recipe.launch.metrics_port), progress,
                    status);
    observers.add(&*metrics);
    std::printf("metrics: http://%s:%d/metrics\n", store.host().c_str(), int{metrics->port()});
    std::fflush(stdout);
  }
  Supervisor supervisor({.program = fs::read_symlink("/proc/self/exe"),
                         .log_folder = folder.logs(),
                         .processes = process_specs(recipe, folder, start, store),
                         .supervision = &store.supervision(),
                         .stop_timeout = recipe.launch.stop_timeout,
                         .held_timeout = recipe.rpc.peer_timeout,
                         .hold_fd = folder.lock_fd()},
                        &observers);

  const SupervisorResult result = supervisor.run(signals);
  const bool goes_on = restarts_left > 0 && may_resume(result, recipe);
  progress.finish();
  status.finish(result, goes_on);
  print_end(command, result, folder);
  return {result.exit_code, goes_on};
}

}  // namespace

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
  StartEnd end = run_once(command, recipe, mode_of(command), most, signals);
  for (int64_t restart = 1; end.goes_on; ++restart) {
    std::cerr << "note: the run goes on from its last checkpoint, " << restart << " of " << most
              << " times (launch.max_restarts)" << std::endl;
    end = run_once(command, recipe, RunFolderMode::kResume, most - restart, signals);
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
