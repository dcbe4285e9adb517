#include "launch/status/status_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/file.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/process_name.h"
#include "launch/writers/reserved_file.h"

namespace retort::launch {
namespace {

constexpr std::chrono::seconds kInterval{1};

// Puts what a process says of itself into the words of status.json.
ProcessState state_of(const ProcessStatus& status) {
  if (status.state == "serving")
    return status.step == 0 ? ProcessState::kReady : ProcessState::kServing;
  for (const auto& [word, state] : {std::pair{"training", ProcessState::kTraining},
                                    {"saving", ProcessState::kSaving},
                                    {"done", ProcessState::kStopped},
                                    {"stopped", ProcessState::kStopped},
                                    {"interrupted", ProcessState::kStopped},
                                    {"diverged", ProcessState::kStopped},
                                    {"failed", ProcessState::kFailed}})
    if (status.state == word) return state;
  return ProcessState::kLoading;
}

}  // namespace

RunStatus read_run_status(const std::filesystem::path& run) {
  if (!std::filesystem::is_directory(run))
    throw Error(ErrorCode::kInvalidArgument,
                "'" + run.string() + "' is no folder; expected the output_dir of a run");
  const auto file = run / kStatusFile;
  if (!std::filesystem::exists(file))
    throw Error(ErrorCode::kInvalidArgument,
                "'" + run.string() + "' holds no " + kStatusFile +
                    "; `retort launch` writes it into its output_dir when it starts a run");
  try {
    return decode_run_status(read_file(file));
  } catch (const Error& e) {
    throw Error(e.code(), file.string() + ": " + e.message());
  }
}

struct StatusFile::Disk {
  explicit Disk(const std::filesystem::path& path) : file(path) {}

  ReservedFile file;
  std::string failed;  // why the last state was not written
};

StatusFile::StatusFile(Options options)
    : options_(std::move(options)), disk_(std::make_shared<Disk>(options_.path)) {
  status_.run = options_.run;
  status_.recipe = options_.recipe;
  status_.reproducible = options_.reproducible;
  status_.launcher_pid = ::getpid();
  status_.launcher_host = host_name();
  status_.started = options_.now();
  status_.step = options_.start_step;
  status_.max_steps = options_.max_steps;
  write();
}

StatusFile::~StatusFile() {
  // Without finish() the launcher gave up, and the file must not say for ever that the run goes on.
  // A run to which it is attached does go on without it.
  if (finished_ || options_.is_attached) return;
  status_.exit_code = 1;
  status_.notice = "the launcher gave up; its last words are on its stderr";
  enter(RunState::kFailed);
  write_last(/*keeps_room=*/false);
}

RunStatus::Process& StatusFile::process(const std::string& role, int64_t rank) {
  for (auto& known : status_.processes)
    if (known.role == role && known.rank == rank) return known;
  return status_.processes.emplace_back(RunStatus::Process{.role = role, .rank = rank});
}

void StatusFile::enter(RunStatus::Process& process, ProcessState state) {
  if (process.state == state) return;
  process.state = state;
  process.since = options_.now();
  changed_ = true;
}

void StatusFile::enter(RunState state) {
  changed_ = changed_ || status_.state != state;
  status_.state = state;
}

void StatusFile::on_start(const ProcessSpec& spec, pid_t pid) {
  auto& started = process(spec.context.role, spec.context.rank);
  // A process that this launcher has started before counts on; one that it meets for the first time
  // brings its count.
  started.restarts = started.pid != 0 ? started.restarts + 1 : spec.context.restart;
  started.pid = pid;
  started.host = spec.host.empty() ? status_.launcher_host : spec.host;
  started.state = ProcessState::kStarting;
  started.since = started.last_report = options_.now();
  started.step = 0;
  started.message = started.error = "";
  changed_ = true;
}

void StatusFile::on_status(const ProcessSpec& spec, const ProcessStatus& status) {
  auto& heard = process(spec.context.role, spec.context.rank);
  heard.last_report = options_.now();
  heard.step = status.step;
  heard.message = status.state == "waiting" ? "waiting " + status.message : status.message;
  heard.error = status.error;
  enter(heard, state_of(status));
  if (status.warning && !status.message.empty()) {
    status_.warning = process_name(heard.role, heard.rank) + ": " + status.message;
    changed_ = true;
  }

  const bool trains = spec.driving && heard.state == ProcessState::kTraining;
  if (trains && status_.state == RunState::kStarting) enter(RunState::kRunning);
  if (spec.driving) status_.step = std::max(status_.step, status.step);
}

void StatusFile::on_end(const ProcessSpec& spec, const ProcessEnd& end) {
  auto& ended = process(spec.context.role, spec.context.rank);
  ended.exit_code.reset();
  ended.signal.reset();
  if (WIFEXITED(end.status)) ended.exit_code = WEXITSTATUS(end.status);
  if (WIFSIGNALED(end.status)) ended.signal = WTERMSIG(end.status);
  enter(ended, end.as_asked ? ProcessState::kStopped : ProcessState::kFailed);
}

void StatusFile::on_phase(const std::string& message) { status_.notice = message; }

void StatusFile::on_stopping() { enter(RunState::kStopping); }

void StatusFile::on_tick() {
  const auto since_last = options_.now() - status_.updated;
  // A clock that was set back must not keep the file old until it has caught up.
  const bool due = since_last >= kInterval || since_last < Clock::duration::zero();
  if (changed_ || due) write();
}

void StatusFile::note_failure(const ProcessFailure& failure, const std::string& cause) {
  auto& failed = process(failure.role, failure.rank);
  enter(failed, ProcessState::kFailed);
  if (!failure.message.empty()) failed.message = failure.message;
  failed.error = failure.error;
  failed.cause = cause;
}

void StatusFile::finish(const SupervisorResult& result, bool goes_on) {
  finished_ = true;
  if (result.cause) {
    const std::string first = result.cause->name();
    status_.cause = {.process = first,
                     .what = result.cause->what(),
                     .message = result.cause->message,
                     .error = result.cause->error,
                     .log = result.cause->log.string()};
    note_failure(*result.cause, first);
    for (const ProcessFailure& failure : result.consequences)
      note_failure(failure, first);
  }

  if (goes_on) {
    status_.notice = "the run goes on from its last checkpoint";
    enter(RunState::kStarting);
    return write_last(/*keeps_room=*/true);
  }
  // A run that ends with a checkpoint, for whatever reason, has not failed.
  status_.exit_code = result.exit_code;
  const int code = result.exit_code;
  if (code != 0 && code != kExitStoppedEarly && code != kExitInterrupted && code != kExitDiverged)
    enter(RunState::kFailed);
  else
    enter(result.stopped_early ? RunState::kStopped : RunState::kDone);
  write_last(/*keeps_room=*/false);
}

void StatusFile::take_progress() {
  const ProgressState* progress = options_.progress;
  if (progress == nullptr) return;
  status_.fraction = progress->fraction;
  status_.eta = status_.ended() ? std::nullopt : progress->eta;
  if (!progress->last) return;

  status_.step = std::max(status_.step, progress->last->step);
  // JSON has no NaN, so that a loss which is none is not known.
  const auto loss = progress->last->values.find("loss");
  const bool known = loss != progress->last->values.end() && std::isfinite(loss->second);
  status_.loss = known ? std::optional(loss->second) : std::nullopt;
}

// While the thread still writes an older state this one waits, and the next tick tries again.
void StatusFile::write() {
  take_progress();
  if (thread_.idle()) start_writing(/*is_last=*/false);
  if (thread_.wait_a_while(options_.patience)) return tell_trouble();
  if (std::exchange(warned_, true)) return;
  RETORT_LOG(kWarning) << "the file system of " << options_.path.string()
                       << " does not answer; the run goes on, `retort status` will not know it";
}

// Writes the last state. No later one would try again, so that this one is waited for longer.
void StatusFile::write_last(bool keeps_room) {
  take_progress();
  const Deadline deadline = Deadline::after(options_.last_wait);
  const bool is_free = thread_.wait(deadline);
  if (is_free) start_writing(!keeps_room);
  if (is_free && thread_.wait(deadline)) return tell_trouble();
  RETORT_LOG(kWarning) << "the file system of " << options_.path.string()
                       << " does not answer: it does not say how this run has ended";
}

void StatusFile::start_writing(bool is_last) {
  status_.updated = options_.now();
  changed_ = false;
  // The thread gets a copy of the text and a share of the disk's state, because a write that hangs
  // may outlive this object.
  thread_.start([disk = disk_, content = encode_run_status(status_), is_last] {
    disk->failed.clear();
    try {
      disk->file.replace(content);
    } catch (const std::exception& e) {
      disk->failed = e.what();
    }
    if (is_last) disk->file.release();
  });
}

// Call it once the thread is idle: until then what the disk said is the thread's.
void StatusFile::tell_trouble() {
  if (disk_->failed.empty() || std::exchange(warned_, true)) return;
  RETORT_LOG(kWarning) << disk_->failed << "; the run goes on, `retort status` will not know it";
}

}  // namespace retort::launch
