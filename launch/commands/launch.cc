#include "launch/commands/launch.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
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

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// Every rank is a child of this process.
std::vector<ProcessSpec> process_specs(const recipes::Recipe& recipe, const RunFolder& folder,
                                       const RunStart& start) {
  const int64_t processes = recipe.num_processes();
  std::vector<ProcessSpec> specs;
  for (const auto& [name, role] : recipe.roles) {
    for (int64_t rank = 0; rank < role.world.world_size(); ++rank) {
      ChildContext context = rank_context_of(recipe, start, name, rank);
      context.threads = threads_per_process(role.world.threads, processes);
      specs.push_back(child_spec(recipe, folder, std::move(context)));
    }
  }
  return specs;
}

RunFolderMode mode_of(const LaunchCommand& command) {
  if (command.resume) return RunFolderMode::kResume;
  return command.overwrite ? RunFolderMode::kOverwrite : RunFolderMode::kFresh;
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

StartOptions options_of(const LaunchCommand& command, const recipes::Recipe& recipe,
                        RunFolderMode mode, int64_t restarts_left) {
  StartOptions options{.recipe = recipe, .mode = mode, .restarts_left = restarts_left};
  options.run = fs::absolute(recipe.output_dir).lexically_normal().filename().string();
  options.secret =
      recipe.launch.secret_file ? read_secret(*recipe.launch.secret_file) : random_hex(32);
  options.encryption = recipe.rpc.encryption;
  const recipes::RendezvousOptions& rendezvous = recipe.launch.rendezvous;
  options.store_bind = rendezvous.address ? *rendezvous.address : recipe.rpc.bind;
  options.store_ports = std::to_string(rendezvous.port);
  options.processes = [&recipe](const RunFolder& folder, const RunStart& start, SignalCatcher&) {
    return process_specs(recipe, folder, start);
  };
  options.last_line = [&command](const SupervisorResult& result, const fs::path& folder) {
    return last_line(command, result, folder);
  };
  return options;
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
    return run_once(options_of(command, recipe, mode, restarts_left), signals);
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
