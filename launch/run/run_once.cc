#include "launch/run/run_once.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/printable.h"
#include "launch/backends/rank_spec.h"
#include "launch/status/metrics_command.h"
#include "launch/status/metrics_endpoint.h"
#include "launch/status/progress.h"
#include "launch/status/status_file.h"
#include "launch/supervision/observers.h"
#include "launch/writers/background_writer.h"
#include "models/safetensors/file_checksums.h"
#include "recipes/roles/external_roles.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"
#include "recipes/run/checkpoints/resume_point.h"
#include "recipes/type/recipe_type.h"
#include "recipes/type/registry.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// An attached launcher waits this long for the processes to find it: NFS may show them a file that
// is new only after a minute.
constexpr Duration kFindLauncher{90'000};

// How long launch.metrics_command has to read what is left and to end. After a signal it has less,
// because somebody waits for the run to be gone.
constexpr Duration kMetricsCommandEnd{30'000};
constexpr Duration kEndAfterSignal{5'000};
// How long the last lines wait for a reader.
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
  // The processes that live keep the number that they were started with, and so does this start.
  if (attached) return before;
  const int64_t number = before + 1;
  write_file_atomically(file, std::to_string(number) + "\n");
  return number;
}

// Writes as Progress does: past stdout's buffer, and without a long wait for a reader who does not
// read. What was said on stderr before comes out before it.
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

// Sets a damaged checkpoint aside, so that a start that follows goes on from the one before. One
// that is whole when it is read again stays, because what a host's memory or network did is no
// damage of the file. False: there is none before.
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

// What is shown, written and told of a start while it runs.
class StartObservers {
 public:
  StartObservers(const StartOptions& options, int64_t start_step);
  StartObservers(const StartObservers&) = delete;
  StartObservers& operator=(const StartObservers&) = delete;

  SupervisorObserver* all() { return &observers_; }
  // True for a process of launch.metrics_command.
  bool is_helper(pid_t pid) const { return command_ && command_->is_program(pid); }
  bool has_helper() const { return command_.has_value(); }
  // The processes have ended.
  void end_helper(SupervisorResult& result);
  void finish(const SupervisorResult& result, bool goes_on);

 private:
  void serve_metrics(const StartOptions& options);
  void start_helper(const StartOptions& options);

  Progress progress_;
  StatusFile status_;
  Observers observers_{{&progress_, &status_}};
  std::optional<MetricsEndpoint> metrics_;
  std::vector<std::string> remarks_;
  std::optional<MetricsCommand> command_;
};

StartObservers::StartObservers(const StartOptions& options, int64_t start_step)
    : progress_({.fd = STDOUT_FILENO,
                 .live = ::isatty(STDOUT_FILENO) != 0,
                 .title = options.recipe.recipe.text + " -> " + options.recipe.output_dir,
                 .metrics = options.folder.metrics(),
                 .watched = recipes::recipe_type(options.recipe).watched_metrics(options.recipe),
                 .start_step = start_step,
                 .max_steps = options.recipe.train.max_steps,
                 .num_epochs = options.recipe.train.num_train_epochs}),
      status_({.path = options.folder.path() / kStatusFile,
               .run = options.folder.path().filename().string(),
               .recipe = options.recipe.recipe.text,
               .reproducible = recipes::is_repeatable(options.recipe),
               .start_step = start_step,
               .max_steps = options.recipe.train.max_steps,
               .progress = &progress_.state(),
               .is_attached = options.attached}) {
  if (options.recipe.launch.metrics_port) serve_metrics(options);
  if (!options.recipe.launch.metrics_command.empty()) start_helper(options);
}

void StartObservers::serve_metrics(const StartOptions& options) {
  const std::string& host = options.store.host();
  const auto port = static_cast<uint16_t>(*options.recipe.launch.metrics_port);
  try {
    metrics_.emplace(host, port, progress_, status_);
  } catch (const Error& error) {
    throw Error(error.code(), "launch.metrics_port: " + error.message() +
                                  "; write another one, or 0, with which the system chooses");
  }
  observers_.add(&*metrics_);
  print_line("metrics: http://" + host + ":" + std::to_string(metrics_->port()) + "/metrics");
}

void StartObservers::start_helper(const StartOptions& options) {
  const auto tell = [this](const std::string& message) {
    remarks_.push_back(message);
    progress_.on_phase(message);
    status_.on_phase(message);
  };
  command_.emplace(MetricsCommand::Options{.argv = options.recipe.launch.metrics_command,
                                           .metrics = options.folder.metrics(),
                                           .output = options.folder.logs() / "metrics_command.log",
                                           .tell = tell});
  observers_.add(&*command_);
}

void StartObservers::end_helper(SupervisorResult& result) {
  if (command_) command_->finish(result.signal == 0 ? kMetricsCommandEnd : kEndAfterSignal);
  result.remarks.insert(result.remarks.end(), remarks_.begin(), remarks_.end());
}

void StartObservers::finish(const SupervisorResult& result, bool goes_on) {
  progress_.finish();
  status_.finish(result, goes_on);
}

SupervisorOptions supervised(const StartOptions& options, const RunStart& start,
                             const StartObservers& observers) {
  const recipes::Recipe& recipe = options.recipe;
  SupervisorOptions result{
      .log_folder = options.folder.logs(),
      .processes = options.processes.processes(start),
      .supervision = &options.store.supervision(),
      .stop_timeout = recipe.launch.stop_timeout,
      .held_timeout = recipe.rpc.peer_timeout,
      .backend = &options.processes.backend(),
      .place_again =
          [&](const std::vector<ProcessSpec*>& replica) { options.processes.place_again(replica); },
  };
  if (observers.has_helper())
    result.is_helper = [&](pid_t pid) { return observers.is_helper(pid); };
  if (options.attached) result.connect_timeout = kFindLauncher;
  return result;
}

}  // namespace

StartEnd run_once(const StartOptions& options, SignalCatcher& signals) {
  const RunFolder& folder = options.folder;

  // Every process of this start is told where the store is and to which start it belongs. The store
  // serves already.
  const RunStart start{.run = options.access.run,
                       .secret = options.access.secret,
                       .incarnation = incarnation(folder.path(), options.attached),
                       .resume = options.resume,
                       .writes_cache = options.writes_cache,
                       .store_host = options.store.host(),
                       .store_port = options.store.port(),
                       .encryption = options.access.encryption};
  const int64_t start_step = folder.resume_from() ? folder.resume_from()->step : 0;
  if (options.resume && !options.writes_cache)
    print_line("resuming " + folder.path().string() + " at step " + std::to_string(start_step));

  StartObservers observers(options, start_step);
  Supervisor supervisor(supervised(options, start, observers), observers.all());
  SupervisorResult result = supervisor.run(signals);
  observers.end_helper(result);

  // A checkpoint that is damaged is no reason to end: the one before may be whole.
  bool goes_on = options.restarts_left > 0 && may_resume(result, folder);
  const auto damaged = damaged_checkpoint(result, folder);
  if (goes_on && damaged)
    goes_on = fall_back(*damaged, result.cause->message, folder, result.remarks);

  // status.json says whether the run goes on, which is certain only now.
  observers.finish(result, goes_on);
  print_end(options, result, folder);

  // Without a new checkpoint those of the run still belong to the recipe before. It is put back, so
  // that a later --resume is compared with that.
  const auto newest = recipes::latest_checkpoint(folder.path());
  const bool progressed = newest && newest->step > start_step;
  if (result.cause && !progressed) folder.restore_recipe();
  return {.exit_code = result.exit_code,
          .goes_on = goes_on,
          .lost_process = result.cause && !result.cause->lost.empty(),
          .progressed = progressed};
}

}  // namespace retort::launch
