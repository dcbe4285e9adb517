#include "launch/commands/launch.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host_name.h"
#include "base/log.h"
#include "launch/backends/rank_spec.h"
#include "launch/backends/run_backend.h"
#include "launch/backends/run_store.h"
#include "launch/backends/start_processes.h"
#include "launch/commands/command_line.h"
#include "launch/commands/submit.h"
#include "launch/document/recipe_file.h"
#include "launch/placement/placement.h"
#include "launch/process/child_process.h"
#include "launch/process/shell_word.h"
#include "launch/process/signal_catcher.h"
#include "launch/run/run_backends.h"
#include "launch/run/run_once.h"
#include "launch/run/run_to_end.h"
#include "launch/run_folder/driving_lock.h"
#include "launch/run_folder/launcher_address.h"
#include "launch/run_folder/run_folder.h"
#include "launch/ssh/fit_to_hosts.h"
#include "launch/status/run_status.h"
#include "launch/status/status_file.h"
#include "launch/supervision/supervisor.h"
#include "launch/writers/stderr_writer.h"
#include "launch/yaml/role_values.h"
#include "parallel/device_module.h"
#include "recipes/roles/external_roles.h"
#include "recipes/roles/input_paths.h"
#include "recipes/rules/models.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

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
  if (recipe.environment)
    std::cerr << "note: roles." << recipe.environment->role
              << " may answer otherwise from run to run, and samples differ with it: it is an "
                 "environment"
              << std::endl;
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
  // The models of pods are not on this host, so that nothing of them can be checked.
  if (recipe.launch.backend == recipes::Backend::kKubernetes) return recipe;
  if (command.overwrite) refuse_to_overwrite_inputs(recipe);
  recipes::check_models(recipe);
  check_min_dp(recipe);
  return recipe;
}

int run_launch(const LaunchCommand& command) {
  const bool starts = !command.submit && !command.dry_run;
  if (starts)
    write_stderr_in_background();
  else
    release_signals(kEndSignals);

  // What can be refused is refused before anything is made: the recipe, and that this process runs
  // it.
  const recipes::Recipe recipe = load_for_launch(command);
  const std::unique_ptr<RunBackend> backend = make_run_backend(
      {.recipe = recipe, .recipe_file = command.recipe, .submitted = command.submitted});
  if (command.submit) return run_submit(command, recipe, *backend);
  if (command.dry_run) {
    std::fputs(backend->dry_run(command.resume, command.overwrite).c_str(), stdout);
    return 0;
  }
  backend->check();

  // Nothing has been made or removed: one who has asked to end by now gets what he asked for. Not
  // by the signal itself, which the kernel drops where this is the first process of a container.
  if (const int signal = held_signal(kEndSignals); signal != 0) return 128 + signal;
  // From here a signal means: stop cleanly. The catcher is leaked on purpose: a signal that comes
  // after the work is done must not turn a good exit into a death by signal.
  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});

  const WholeRun run{.recipe = recipe,
                     .backend = *backend,
                     .signals = signals,
                     .last_line = [&](const SupervisorResult& result, const fs::path& path) {
                       return last_line(command, result, path);
                     }};
  return go_on(run, start_run(run, {.mode = run_folder_mode(command.resume, command.overwrite),
                                    .restarts_left = recipe.launch.max_restarts}));
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

namespace {

[[noreturn]] void refuse_to_attach(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "--attach: " + why);
}

// Refuses a run that cannot be taken over, before anything is asked or written.
void check_run(const recipes::Recipe& recipe, const RunStatus& status, const fs::path& folder) {
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

// The processes that live, on the hosts where the backend knows them to be.
class AttachedProcesses final : public StartProcesses {
 public:
  AttachedProcesses(const recipes::Recipe& recipe, const RunFolder& folder, const RunStatus& status,
                    StartProcesses& where)
      : recipe_(recipe), folder_(folder), status_(status), where_(where) {}

  // Each process is in its life of now; in the next one it is a child of this launcher or of a
  // host's.
  std::vector<ProcessSpec> processes(const RunStart& start) override {
    std::vector<ProcessSpec> specs;
    for (const RunStatus::Process& process : status_.processes) {
      const int64_t threads = recipe_.roles.at(process.role).world.threads;
      ChildContext context = rank_context_of(recipe_, start, process.role, process.rank);
      context.restart = context.life = process.restarts;
      context.threads = threads_per_process(threads, recipe_.num_processes());
      context.ranks_on_host = all_ranks(recipe_);
      ProcessSpec spec = child_spec(recipe_, folder_, std::move(context));
      place(spec);
      spec.joined = JoinedSpec{.pid = process.pid, .is_replaceable = true};
      specs.push_back(std::move(spec));
    }
    return specs;
  }
  Backend& backend() override { return where_.backend(); }
  void place(ProcessSpec& spec) const override { where_.place(spec); }
  void place_again(const std::vector<ProcessSpec*>& replica) override {
    where_.place_again(replica);
  }

 private:
  const recipes::Recipe& recipe_;
  const RunFolder& folder_;
  const RunStatus& status_;
  StartProcesses& where_;
};

// Keeps the start that the launcher before has begun, to its end.
StartEnd attach(const WholeRun& run, const RunFolder& folder, const RunStatus& status) {
  const std::unique_ptr<RunBackend::Start> start = run.backend.attach(folder, status, run.signals);
  const rpc::RendezvousAccess access{.run = read_run_id(folder.path()),
                                     .secret = run_secret(run.recipe),
                                     .encryption = run.recipe.rpc.encryption};
  rpc::RendezvousServer store =
      serve_store(run.recipe, access, start->bind(), run.recipe.launch.rendezvous.port);

  // The store serves before it is announced, because the processes dial as soon as they find it.
  announce_launcher(folder.path(), store.host(), store.port());

  const std::unique_ptr<StartProcesses> where = start->enter(folder);
  AttachedProcesses processes(run.recipe, folder, status, *where);
  return run_once({.recipe = run.recipe,
                   .folder = folder,
                   .store = store,
                   .access = access,
                   .attached = true,
                   .restarts_left = run.recipe.launch.max_restarts,
                   .processes = processes,
                   .last_line = run.last_line},
                  run.signals);
}

// Takes over the run in this folder, whose processes go on without a launcher (launch.launcher_lost
// is continue): shows its progress, keeps status.json, restarts serving roles that are lost, and
// ends with the run's exit code, as the launcher before would have.
// Errors: kInvalidArgument for a run that ends with its launcher, has ended, or runs on another
// host; kUnavailable where a launcher keeps it.
int run_attach(const std::string& run_folder) {
  write_stderr_in_background();
  const fs::path path = fs::absolute(run_folder).lexically_normal();
  const RunStatus status = read_run_status(path);
  const LaunchCommand command{.recipe = (path / kResolvedRecipe).string()};
  const LoadOptions options{.cuda = parallel::DeviceModule::present(), .check_files = false};
  const recipes::Recipe recipe = load_recipe(command.recipe, {}, options);
  if (recipe.launch.log_format == LogFormat::kJson) set_log_format(LogFormat::kJson);
  check_run(recipe, status, path);

  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});  // as run_launch has it
  const std::unique_ptr<RunBackend> backend =
      make_run_backend({.recipe = recipe, .recipe_file = command.recipe});
  const WholeRun run{.recipe = recipe,
                     .backend = *backend,
                     .signals = signals,
                     .last_line = [&](const SupervisorResult& result, const fs::path& folder) {
                       return last_line(command, result, folder);
                     }};
  StartEnd end;
  {
    const LauncherLock lock(path);
    const RunFolder folder(path, RunFolderMode::kAttach);
    // This is asked under the launcher's lock, so that no other launcher begins meanwhile.
    if (!anyone_drives(path))
      refuse_to_attach("no process of " + path.string() + " trains; --resume goes on from its " +
                       "newest checkpoint");
    end = attach(run, folder, status);
  }
  return go_on(run, end);
}

struct LaunchArguments {
  LaunchCommand run;
  std::string attached_run;  // the folder of one that there is; "": `run`
};

int launch_or_attach(const LaunchArguments& arguments) {
  return arguments.attached_run.empty() ? run_launch(arguments.run)
                                        : run_attach(arguments.attached_run);
}

}  // namespace

void add_launch(Command program) {
  Command c = program.command(
      "launch", "run a recipe: start all role processes, show progress, exit when it is done");
  LaunchArguments& o = c.runs(launch_or_attach, OnSignal::kEndsInOrder);
  const Argument recipe = c.option("recipe", o.run.recipe, "recipe file (YAML)");
  c.option("overrides", o.run.overrides, "key.path=value ...");
  const Argument resume =
      c.flag("--resume", o.run.resume, "continue the run in output_dir from its newest checkpoint");
  const Argument overwrite =
      c.flag("--overwrite", o.run.overwrite, "delete what is in output_dir first").excludes(resume);
  const Argument submit = c.flag(
      "--submit", o.run.submit, "as a job of Slurm (launch.backend: slurm), which starts it later");

  // Said by the script of such a job, not by people.
  c.flag("--submitted", o.run.submitted).unlisted().excludes(submit);

  Argument attach = c.option("--attach", o.attached_run,
                             "take over the run in this folder, whose launcher is gone");
  for (const Argument other : {recipe, resume, overwrite, submit})
    attach.excludes(other);
  c.flag("--dry-run", o.run.dry_run, "print what to apply with backend: kubernetes")
      .needs(recipe)
      .excludes(submit);
  c.needs_any();
}

}  // namespace retort::launch
