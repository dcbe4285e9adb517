#include "launch/slurm/steps.h"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/process/exec_arguments.h"
#include "launch/join/carried_variables.h"
#include "launch/process/child_process.h"
#include "launch/process/find_program.h"
#include "launch/slurm/exit_status.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {
namespace {

// How long what the tasks said last may take to arrive over their own connections.
constexpr std::chrono::milliseconds kHearTasksOut{2'000};
// The time between two looks at what srun says.
constexpr std::chrono::milliseconds kListen{500};
// How long one look-up and one signal may take, and the time until the next try.
constexpr std::chrono::milliseconds kAnswer{20'000};
constexpr std::chrono::milliseconds kAgain{1'000};
// How long steps have to end when the run is over, by themselves and once they are killed.
constexpr std::chrono::milliseconds kEnd{5'000};
constexpr std::chrono::milliseconds kKilledEnd{15'000};
constexpr std::chrono::milliseconds kStepTick{50};

// A step has no number before its nodes have it: it is looked up by its name.
constexpr const char* kSignal = R"(ids=$(squeue --noheader --steps --jobs="$1" --format="%i %j" |
  awk -v name="$2" '$2 == name { print $1 }')
[ -n "$ids" ] || exit 9
exec scancel --signal="$3" $ids)";

// A step gets what a launcher's own child gets, with the variables of the job and, for its tasks,
// those of the role.
std::vector<std::string> step_environment(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> kept;
  for (const std::string& entry : own_environment()) {
    const std::string name = entry.substr(0, entry.find('='));
    const bool is_ours = name.starts_with("RETORT_") && name != "RETORT_LOG" &&
                         name != "RETORT_CUDA_MODULE" && name != "RETORT_OUTER_LIBRARY_PATH";
    if (!is_ours) kept.push_back(entry);
  }
  for (const auto& [name, value] : carried_variables(variables))
    kept.push_back(name + "=" + value);
  return kept;
}

}  // namespace

struct SlurmSteps::Step {
  Step(const SlurmStepStart& from, const SpawnOptions& options)
      : name(from.name), role(from.role), log(from.log), srun(options) {}

  const std::string name, role;
  const std::filesystem::path log;
  int64_t log_offset = 0;
  ChildProcess srun;
  std::optional<int> status;
  std::optional<Deadline> heard_out_by;

  void listen();
  std::string words = {};  // of srun, in this start
  std::optional<Deadline> next_listen = {};
  std::map<int64_t, Deadline> task_heard_out_by = {};

  int wanted = 0, sent = 0;  // the signal that its tasks are to get, and that of `sender`; 0: none
  std::optional<ChildProcess> sender;
  std::optional<Deadline> answer_by;
  std::optional<Deadline> next_try;
};

SlurmSteps::SlurmSteps(std::string job) : job_(std::move(job)) {}

SlurmSteps::~SlurmSteps() {
  // Steps end by themselves when their tasks have. The rest is killed, and what is left then is
  // Slurm's to end.
  work_until_ended(Deadline::after(kEnd));
  for (const auto& step : steps_)
    if (!step->status) signal(step->role, SIGKILL);
  work_until_ended(Deadline::after(kKilledEnd));
  for (const auto& step : steps_) {
    if (step->status) continue;
    RETORT_LOG(kWarning) << "the step of " << step->role
                         << " has not ended: Slurm ends it, when its allocation ends at the latest";
  }
}

void SlurmSteps::start_step(const SlurmStepStart& start) {
  std::error_code missing;
  const auto size = std::filesystem::file_size(start.log, missing);
  auto step = std::make_unique<Step>(
      start, SpawnOptions{.program = find_program("srun", "launch.backend: slurm", "slurm-client"),
                          .arguments = start.arguments,
                          .environment = step_environment(start.variables),
                          .log = start.log});
  step->log_offset = missing ? 0 : static_cast<int64_t>(size);
  steps_.push_back(std::move(step));
}

void SlurmSteps::check() {
  work();
  for (const auto& step : steps_) {
    if (!step->status) continue;
    std::string words;
    for (const std::string& line : log_tail(step->log, step->log_offset, 5))
      words += "\n  " + line;
    throw Error(ErrorCode::kUnavailable, "srun ended before the processes of " + step->role +
                                             " had joined the run; see " + step->log.string() +
                                             words);
  }
}

void SlurmSteps::signal(const std::string& role, int number) {
  Step& step = step_of(role);
  // SIGTERM after SIGKILL would ask what is being killed to end, and other signals are nothing to a
  // step.
  if (number == SIGKILL || (number == SIGTERM && step.wanted == 0)) {
    if (step.wanted != number) step.next_try = Deadline::after(Duration(0));
    step.wanted = number;
  }
}

void SlurmSteps::Step::listen() {
  if (next_listen && !next_listen->expired()) return;
  next_listen = Deadline::after(kListen);
  std::error_code missing;
  const auto size = std::filesystem::file_size(log, missing);
  const int64_t heard = log_offset + static_cast<int64_t>(words.size());
  if (missing || static_cast<int64_t>(size) <= heard) return;
  std::ifstream file(log, std::ios::binary);
  file.seekg(heard);
  std::string more(static_cast<size_t>(size) - static_cast<size_t>(heard), '\0');
  file.read(more.data(), static_cast<std::streamsize>(more.size()));
  words.append(more, 0, static_cast<size_t>(file.gcount()));
}

std::optional<int> SlurmSteps::ended(const std::string& role, int64_t rank) {
  Step& step = step_of(role);
  // srun says of a task that was killed that it is gone before anybody misses it.
  step.listen();
  if (const auto status = task_end_of(step.words, rank)) {
    const auto [known, _] =
        step.task_heard_out_by.try_emplace(rank, Deadline::after(kHearTasksOut));
    return known->second.expired() ? status : std::nullopt;
  }
  // Where srun has said nothing of the task, the end of the whole step is its end.
  if (!step.status || !WIFEXITED(*step.status) || !step.heard_out_by->expired())
    return std::nullopt;
  return task_status_of(WEXITSTATUS(*step.status));
}

std::unique_ptr<RoleProcess> SlurmSteps::start(const ProcessStart&) {
  RETORT_CHECK(false) << "the tasks of a step join the run by themselves";
  return nullptr;
}

void SlurmSteps::poll_for(std::vector<pollfd>& entries) const {
  for (const auto& step : steps_) {
    if (!step->status) entries.push_back({step->srun.pidfd(), POLLIN, 0});
    if (step->sender) entries.push_back({step->sender->pidfd(), POLLIN, 0});
  }
}

void SlurmSteps::work() {
  for (const auto& step : steps_) {
    if (!step->status) {
      step->status = step->srun.try_reap();
      if (step->status) step->heard_out_by = Deadline::after(kHearTasksOut);
    }
    take_answer(*step);
    const bool is_due = !step->sender && step->next_try && step->next_try->expired();
    if (is_due && !step->status) try_to_send(*step);
  }
}

bool SlurmSteps::is_child(pid_t pid) const {
  return std::ranges::any_of(steps_, [&](const auto& step) {
    return step->srun.pid() == pid || (step->sender && step->sender->pid() == pid);
  });
}

SlurmSteps::Step& SlurmSteps::step_of(const std::string& role) {
  const auto found =
      std::ranges::find_if(steps_, [&](const auto& step) { return step->role == role; });
  RETORT_CHECK(found != steps_.end()) << "no step has been started for " << role;
  return **found;
}

// A signal for which there is no room now (another process, say) is tried again.
void SlurmSteps::try_to_send(Step& step) {
  try {
    send(step);
  } catch (const Error& error) {
    RETORT_LOG(kWarning) << "cannot signal step " << step.name << ": " << error.what();
    step.next_try = Deadline::after(kAgain);
  }
}

void SlurmSteps::send(Step& step) {
  step.sent = step.wanted;
  const char* const name = step.wanted == SIGKILL ? "KILL" : "TERM";
  step.sender.emplace(SpawnOptions{.program = "/bin/sh",
                                   .arguments = {"-c", kSignal, "sh", job_, step.name, name},
                                   .environment = own_environment(),
                                   .log = step.log});
  step.answer_by = Deadline::after(kAnswer);
}

// SIGTERM is sent once, SIGKILL until the step has ended.
void SlurmSteps::take_answer(Step& step) {
  if (!step.sender) return;
  const auto status = step.sender->try_reap();
  if (!status && !step.answer_by->expired()) return;
  // Another signal that was asked for meanwhile is still to be sent.
  const bool was_sent = status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0;
  step.sender.reset();
  step.next_try = Deadline::after(kAgain);
  if (was_sent && step.sent == step.wanted && step.wanted == SIGTERM) step.next_try.reset();
}

bool SlurmSteps::all_ended() const {
  return std::ranges::all_of(steps_, [](const auto& step) { return step->status.has_value(); });
}

void SlurmSteps::work_until_ended(Deadline deadline) {
  for (work(); !all_ended() && !deadline.expired(); work()) {
    std::vector<pollfd> entries;
    poll_for(entries);
    ::poll(entries.data(), entries.size(), static_cast<int>(kStepTick.count()));
  }
}

}  // namespace retort::launch
