#include "launch/commands/launch.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "launch/backends/run_backend.h"
#include "launch/commands/attach.h"
#include "launch/commands/command_line.h"
#include "launch/commands/submit.h"
#include "launch/document/recipe_file.h"
#include "launch/process/shell_word.h"
#include "launch/process/signal_catcher.h"
#include "launch/run/run_backends.h"
#include "launch/run/run_to_end.h"
#include "launch/run_folder/run_folder.h"
#include "launch/ssh/fit_to_hosts.h"
#include "launch/supervision/supervisor.h"
#include "launch/writers/stderr_writer.h"
#include "launch/yaml/role_values.h"
#include "parallel/device_module.h"
#include "recipes/roles/external_roles.h"
#include "recipes/roles/input_paths.h"
#include "recipes/rules/models.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"

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
  const bool starts = !command.submit && !command.dry_run;
  if (starts)
    write_stderr_in_background();
  else
    release_signals(kEndSignals);

  // What the recipe says, and whether this process may do it.
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
