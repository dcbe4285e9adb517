#include "launch/commands/run_once.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/printable.h"
#include "launch/backends/host_places.h"
#include "launch/backends/role_variables.h"
#include "launch/commands/commands.h"
#include "launch/commands/resumed_recipe.h"
#include "launch/supervision/background_writer.h"
#include "launch/supervision/metrics_command.h"
#include "launch/supervision/metrics_endpoint.h"
#include "launch/supervision/observers.h"
#include "launch/supervision/progress.h"
#include "launch/supervision/status_file.h"
#include "launch/yaml/recipe_file.h"
#include "launch/yaml/resolved_yaml.h"
#include "launch/yaml/role_values.h"
#include "models/file_checksums.h"
#include "recipes/external_roles.h"
#include "recipes/recipe_type.h"
#include "recipes/registry.h"
#include "recipes/run/checkpoint_folder.h"
#include "recipes/run/resume_point.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// Until processes that look for their next launcher have found it: NFS may show them a file that is
// new after a minute.
constexpr Duration kFindLauncher{90'000};

// For launch.metrics_command to read what is left and to end; less where somebody waits for the run
// to be gone.
constexpr Duration kMetricsCommandEnd{30'000};
constexpr Duration kEndAfterSignal{5'000};
// For the last lines to be read.
constexpr Duration kLastLines{2'000};
constexpr int64_t kMostStarts = 1'000'000'000;

int64_t start_number_in(const fs::path& file) {
  const std::string text = read_file(file);
  int64_t number = -1;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  const std::string_view rest(read.ptr, static_cast<size_t>(end - read.ptr));
  const bool is_whole = rest.empty() || rest == "\n";
  if (read.ec != std::errc() || !is_whole || number < 0 || number >= kMostStarts)
    throw Error(ErrorCode::kCorrupt,
                file.string() + " is damaged: it has '" + printable(text.substr(0, 40)) +
                    "', expected the number of the run's last start; once no process of the run "
                    "lives, remove it");
  return number;
}

// Each start of a run has its own number, part of every key in the store.
int64_t incarnation(const fs::path& run_folder, bool attached) {
  const fs::path file = run_folder / ".incarnation";
  const int64_t before = fs::exists(file) ? start_number_in(file) : 0;
  if (attached) return before;
  const int64_t number = before + 1;
  write_file_atomically(file, std::to_string(number) + "\n");
  return number;
}

// What of a recipe changed since its run was started last is refused, or told and applied. A recipe
// that this version cannot read any more is not compared.
void tell_changes(const std::string& before, const recipes::Recipe& recipe) {
  std::optional<recipes::Recipe> old;
  try {
    old = parse_recipe(before, kResolvedRecipe,
                       {.cuda = true,
                        .check_files = false,
                        .check_inputs = false,
                        .is_launched = false,
                        .env_values = false});
  } catch (const Error& error) {
    std::cerr << "note: the recipe that the run had is not compared with this one: "
              << error.message() << "\n";
    return;
  }
  for (const ChangedKey& changed : applied_keys(*old, recipe))
    std::cerr << "note: changed, and applied from here on: " << changed.text() << "\n";
}

// The values of roles.*.env are told to nobody, but that one is another now is.
void tell_changed_values(const fs::path& run_folder, const recipes::Recipe& recipe) {
  RoleValues before;
  try {
    before = read_role_values(run_folder / kResolvedRecipe).value_or(RoleValues{});
  } catch (const Error& error) {
    std::cerr << "note: the values that roles.*.env had are not compared with these: "
              << error.message() << "\n";
  }
  for (const std::string& key : changed_values(before, role_values(recipe)))
    std::cerr << "note: changed, and applied from here on: " << key << ": another value\n";
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

// As Progress writes: past stdout's buffer, and without a long wait for who does not read.
// After what was said on stderr before.
void print_line(const std::string& line) {
  drain_log();
  BackgroundWriter writer(STDOUT_FILENO, line.size() + 1);
  writer.write_always(line + "\n");
  writer.drain(Deadline::after(kLastLines));
}

// What went wrong goes to stderr; how a run that did not fail goes on, or where its result is, to
// stdout.
void print_end(const StartOptions& options, const SupervisorResult& result,
               const RunFolder& folder) {
  for (const std::string& remark : result.remarks)
    std::cerr << "note: " << printable(remark, LineEnds::kKept) << "\n";
  if (const std::string report = result.report(); !report.empty())
    std::cerr << printable(report, LineEnds::kKept) << "\n";

  const std::string line = options.last_line(result, folder.path());
  if (!line.empty()) print_line(line);
}

// Whether a run that ended so may go on by itself from its last checkpoint: not after a wrong
// recipe, and not when somebody asked it to stop.
bool may_resume(const SupervisorResult& result, const RunFolder& folder) {
  return result.cause && result.signal == 0 && result.exit_code != 2 &&
         recipes::latest_checkpoint(folder.path());
}

// The checkpoint that this start went on from, if it failed because that is damaged.
std::optional<recipes::CheckpointEntry> damaged_checkpoint(const SupervisorResult& result,
                                                           const RunFolder& folder) {
  const auto& from = folder.resume_from();
  if (!result.cause || !from) return std::nullopt;
  if (!recipes::is_of_checkpoint(result.cause->error, result.cause->message, from->path))
    return std::nullopt;
  return from;
}

// Puts it out of the way of a start that follows, which then goes on from the one before; unless it
// is whole where it is read again, because what a host's memory or network did is no damage of the
// file. False: there is none before.
bool fall_back(const recipes::CheckpointEntry& damaged, const std::string& message,
               const RunFolder& folder, std::vector<std::string>& remarks) {
  const std::string name = damaged.path.string();
  try {
    if (!models::is_still_damaged(damaged.path, message)) {
      remarks.push_back(name + " was found damaged, but is what was saved when it is read again" +
                        " here; the run goes on from it");
      return true;
    }
    const auto before = recipes::checkpoint_before(damaged.path);
    if (!before) return false;
    const fs::path aside = recipes::set_aside(folder.path(), damaged.step);
    remarks.push_back(name + " is damaged; it is now " + aside.string() +
                      ", and the run goes on from " + before->path.filename().string());
  } catch (const std::exception& error) {
    remarks.push_back(name + " was found damaged and was not set aside: " + error.what() +
                      "; the next start tries it again");
  }
  return true;
}

}  // namespace

RunFolder check_run_folder(const recipes::Recipe& recipe, RunFolderMode mode, Duration lock_timeout,
                           const RunFolder::WhenLocked& when_locked) {
  const fs::path path = run_folder_of(recipe);
  const auto check = [&](const std::optional<std::string>& before) {
    if (before) {
      tell_changes(*before, recipe);
      tell_changed_values(path, recipe);
    }
    keep_templates(recipe, path);
  };
  return RunFolder(path, mode, lock_timeout, check, when_locked);
}

RunFolder open_run_folder(const recipes::Recipe& recipe, RunFolderMode mode, Duration lock_timeout,
                          const RunFolder::WhenLocked& when_locked) {
  const fs::path path = run_folder_of(recipe);
  RunFolder folder = check_run_folder(recipe, mode, lock_timeout, when_locked);
  describe_run(recipe, folder);
  keep_templates(recipe, path);
  return folder;
}

void describe_run(const recipes::Recipe& recipe, const RunFolder& folder) {
  write_role_values(folder.resolved_recipe(), role_values(recipe));
  folder.write_resolved_recipe(resolved_yaml(recipe));
  write_file_atomically(folder.path() / "plan.json", plan_json(recipe) + "\n");
}

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
    const int64_t replica = parallel::coordinate_of(role.world, spec.context.rank).dp;
    spec.replica = spec.context.role + " replica " + std::to_string(replica);
    spec.restarts = role.restarts;
  }

  // The program starts itself; its secret comes on its stdin, not as an argument.
  spec.arguments = role_arguments(spec.context, folder.path());
  spec.env = role_variables(recipe, role);
  return spec;
}

StartEnd run_once(const StartOptions& options, SignalCatcher& signals) {
  const recipes::Recipe& recipe = options.recipe;
  const RunFolder& folder = options.folder;

  // Where the processes of this start find each other, and where training goes on.
  rpc::RendezvousServer& store = options.store;
  const RunStart start{.run = options.access.run,
                       .secret = options.access.secret,
                       .incarnation = incarnation(folder.path(), options.attached),
                       .resume = options.resume,
                       .writes_cache = options.writes_cache,
                       .store_host = store.host(),
                       .store_port = store.port(),
                       .encryption = options.access.encryption};
  const int64_t start_step = folder.resume_from() ? folder.resume_from()->step : 0;
  if (options.resume && !options.writes_cache)
    print_line("resuming " + folder.path().string() + " at step " + std::to_string(start_step));

  Progress progress({.fd = STDOUT_FILENO,
                     .live = ::isatty(STDOUT_FILENO) != 0,
                     .title = recipe.recipe.text + " -> " + recipe.output_dir,
                     .metrics = folder.metrics(),
                     .watched = recipes::recipe_type(recipe).watched_metrics(recipe),
                     .start_step = start_step,
                     .max_steps = recipe.train.max_steps,
                     .num_epochs = recipe.train.num_train_epochs});
  StatusFile status({.path = folder.path() / kStatusFile,
                     .run = folder.path().filename().string(),
                     .recipe = recipe.recipe.text,
                     .reproducible = recipes::roles_of_engines(recipe).empty(),
                     .start_step = start_step,
                     .max_steps = recipe.train.max_steps,
                     .progress = &progress.state(),
                     .is_attached = options.attached});
  Observers observers({&progress, &status});
  std::optional<MetricsEndpoint> metrics;
  if (recipe.launch.metrics_port) {
    try {
      metrics.emplace(store.host(), static_cast<uint16_t>(*recipe.launch.metrics_port), progress,
                      status);
    } catch (const Error& error) {
      throw Error(error.code(), "launch.metrics_port: " + error.message() +
                                    "; write another one, or 0, with which the system chooses");
    }
    observers.add(&*metrics);
    print_line("metrics: http://" + store.host() + ":" + std::to_string(metrics->port()) +
               "/metrics");
  }
  std::vector<std::string> remarks;
  std::optional<MetricsCommand> command;
  if (!recipe.launch.metrics_command.empty()) {
    command.emplace(MetricsCommand::Options{.argv = recipe.launch.metrics_command,
                                            .metrics = folder.metrics(),
                                            .output = folder.logs() / "metrics_command.log",
                                            .tell = [&](const std::string& message) {
                                              remarks.push_back(message);
                                              progress.on_phase(message);
                                              status.on_phase(message);
                                            }});
    observers.add(&*command);
  }
  SupervisorOptions supervised{
      .program = fs::read_symlink("/proc/self/exe"),
      .log_folder = folder.logs(),
      .processes = options.processes(start),
      .supervision = &store.supervision(),
      .stop_timeout = recipe.launch.stop_timeout,
      .held_timeout = recipe.rpc.peer_timeout,
      .hold_fd = folder.lock_fd(),
      .backend = options.backend,
  };
  if (options.places)
    supervised.place_again = [&](const std::vector<ProcessSpec*>& replica) {
      options.places->place_again(replica);
    };
  if (command) supervised.is_helper = [&](pid_t pid) { return command->is_program(pid); };
  if (options.attached) supervised.connect_timeout = kFindLauncher;
  Supervisor supervisor(std::move(supervised), &observers);

  SupervisorResult result = supervisor.run(signals);
  if (command) command->finish(result.signal == 0 ? kMetricsCommandEnd : kEndAfterSignal);
  result.remarks.insert(result.remarks.end(), remarks.begin(), remarks.end());
  bool goes_on = options.restarts_left > 0 && may_resume(result, folder);
  const auto damaged = damaged_checkpoint(result, folder);
  if (goes_on && damaged)
    goes_on = fall_back(*damaged, result.cause->message, folder, result.remarks);
  progress.finish();
  status.finish(result, goes_on);
  print_end(options, result, folder);
  const auto newest = recipes::latest_checkpoint(folder.path());
  // Its checkpoints are still of the recipe before.
  const bool progressed = newest && newest->step > start_step;
  if (result.cause && !progressed) folder.restore_recipe();
  return {.exit_code = result.exit_code,
          .goes_on = goes_on,
          .lost_process = result.cause && !result.cause->lost.empty(),
          .progressed = progressed};
}

}  // namespace retort::launch
