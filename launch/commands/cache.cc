// retort cache: the teacher of a recipe answers each of its rows once, for many students.
#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"
#include "launch/backends/run_backend.h"
#include "launch/commands/command_line.h"
#include "launch/commands/launch.h"
#include "launch/process/signal_catcher.h"
#include "launch/run/run_backends.h"
#include "launch/run/run_to_end.h"
#include "launch/run_folder/run_folder.h"
#include "launch/supervision/supervisor.h"
#include "launch/writers/stderr_writer.h"
#include "launch/yaml/role_values.h"
#include "recipes/document/recipe.h"
#include "recipes/type/registry.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

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

  // What is left of the student is its ranks and their threads. Each row is answered once, in one
  // epoch.
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

// Writes what the teacher says into command.cache, where students find it
// (distill.teachers[].cache). It begins, or goes on with what is there.
int run_cache(const LaunchCommand& command) {
  write_stderr_in_background();
  recipes::Recipe recipe = load_for_launch(command);
  recipes::recipe_type(recipe).check_cache(recipe);
  fit_to_cache(recipe, command.cache);

  // A cache goes on with what is there, if it is one.
  const fs::path folder = run_folder_of(recipe);
  const bool begun = fs::is_regular_file(folder / kResolvedRecipe);
  if (begun && fs::exists(folder / "metrics.jsonl"))
    throw Error(ErrorCode::kInvalidArgument, "--output: " + folder.string() +
                                                 " holds a run that trains, and no cache; choose "
                                                 "another folder");
  const std::unique_ptr<RunBackend> backend =
      make_run_backend({.recipe = recipe, .recipe_file = command.recipe});
  SignalCatcher& signals = *new SignalCatcher({SIGINT, SIGTERM, SIGHUP});  // as run_launch has it
  const WholeRun run{.recipe = recipe,
                     .backend = *backend,
                     .signals = signals,
                     .writes_cache = !command.cache.empty(),
                     .last_line = [&](const SupervisorResult& result, const fs::path& path) {
                       return last_line(command, result, path);
                     }};
  const RunFolderMode mode = begun ? RunFolderMode::kResume : RunFolderMode::kFresh;
  return start_run(run, {.mode = mode}).exit_code;
}

}  // namespace

void add_cache(Command program) {
  Command c = program.command(
      "cache", "keep what the teacher of a distillation says of each row, for many students");
  LaunchCommand& o = c.runs(run_cache, OnSignal::kEndsInOrder);
  c.option("recipe", o.recipe, "recipe file (YAML)").required();
  c.option("overrides", o.overrides, "key.path=value ...");
  c.option("--output", o.cache, "folder to write, or to go on with").required();
}

}  // namespace retort::launch
