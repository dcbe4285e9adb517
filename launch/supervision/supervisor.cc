#include "launch/supervision/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/deadline.h"
#include "base/error.h"
#include "launch/backends/child_process.h"
#include "launch/supervision/child_pipes.h"
#include "launch/supervision/orphans.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kTick{100};
// How long a failure that smells of another's (a lost peer) waits for that other one to show.
constexpr std::chrono::milliseconds kSettle{1000};
constexpr std::chrono::milliseconds kReap{10'000};
constexpr size_t kTailLines = 15;

bool is_consequence(const ProcessFailure& failure) { return failure.distance_from_cause() > 0; }

enum class Phase {
  kRunning,    // until something happens
  kStopping,   // a signal: the driving processes were asked to save and end
  kFinishing,  // the driving processes are done: the serving ones were asked to end
  kFailing,    // something failed: all were asked to end
  kKilled,     // everything was killed
};

struct Watched {
  const ProcessSpec* spec = nullptr;
  std::optional<ChildProcess> process;
  OwnedFd status_fd;
  fs::path log;
  int64_t log_offset = 0;
  ProcessStatus last;
  bool asked_to_stop = false;
  std::optional<int> exit_status;
};

}  // namespace

struct Supervisor::Impl {
  SupervisorOptions options;
  SupervisorObserver quiet;
  SupervisorObserver* observer;
  std::array<OwnedFd, 2> life;
  std::vector<Watched> children;
  Orphans orphans{[this](pid_t pid) { return is_child(pid); }};
  SupervisorResult result;
  std::vector<ProcessFailure> failures;  // in time
  Phase phase = Phase::kRunning;
  std::optional<Deadline> deadline;  // of the phase
  std::optional<Deadline> settle;    // after the first failure: until then a better cause may show

  Impl(SupervisorOptions o, SupervisorObserver* o2)
      : options(std::move(o)), observer(o2 ? o2 : &quiet) {}
  ~Impl() { children.clear(); }  // before `orphans` ends what they leave behind

  void start_all();
  void start(Watched& child);
  void poll_once(SignalCatcher& signals);
  void read_status(Watched& child);
  void ended(Watched& child, int status);
  void signalled(int number);
  void advance();
  void on_deadline();
  void terminate(bool driving, bool serving);
  void kill_all();
  void fail(Watched& child, std::optional<int> status);
  void note_stopped();
  void end_orphans();
  void finish();
  bool is_child(pid_t pid) const {
    return std::any_of(children.begin(), children.end(), [&](const Watched& c) {
      return c.process && c.process->running() && c.process->pid() == pid;
    });
  }
  bool driver_said(const char* state) const {
    return std::any_of(children.begin(), children.end(),
                       [&](const Watched& c) { return c.spec->driving && c.last.state == state; });
  }

  bool any_running(bool driving) const {
    return std::any_of(children.begin(), children.end(), [&](const Watched& c) {
      return !c.exit_status && c.spec->driving == driving;
    });
  }
  bool driver_succeeded() const {
    return std::all_of(children.begin(), children.end(), [](const Watched& c) {
      return !c.spec->driving ||
             (c.exit_status && WIFEXITED(*c.exit_status) && WEXITSTATUS(*c.exit_status) == 0);
    });
  }
};

void Supervisor::Impl::start_all() {
  std::error_code failed;
  fs::create_directories(options.log_folder, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot create folder " + options.log_folder.string() + ": " + failed.message());
  life = make_pipe();
  children.resize(options.processes.size());
  for (size_t i = 0; i < children.size(); ++i) {
    children[i].spec = &options.processes[i];
    start(children[i]);
  }
}

void Supervisor::Impl::start(Watched& child) {
  ChildContext context = child.spec->context;
  context.stop_timeout = options.stop_timeout;
  child.log = options.log_folder / (context.role + "-" + std::to_string(context.rank) + ".log");
  std::error_code missing;
  const auto size = fs::file_size(child.log, missing);
  child.log_offset = missing ? 0 : static_cast<int64_t>(size);
  auto [ours, theirs] = make_status_channel();
  const OwnedFd told = pipe_with(encode_context(context));
  child.process.emplace(
      SpawnOptions{.program = options.program,
                   .arguments = child.spec->arguments,
                   .environment = child_environment(context.threads, child.spec->env),
                   .log = child.log,
                   .life_fd = life[0].get(),
                   .status_fd = theirs.get(),
                   .context_fd = told.get(),
                   .hold_fd = options.hold_fd});
  child.status_fd = std::move(ours);
  observer->on_start(*child.spec, child.process->pid());
}

// Waits for the next event, at most a tick.
void Supervisor::Impl::poll_once(SignalCatcher& signals) {
  std::vector<pollfd> entries{{signals.fd(), POLLIN, 0}};
  std::vector<std::pair<size_t, bool>> owners{{0, false}};  // child, whether the entry is its pidfd
  for (size_t i = 0; i < children.size(); ++i) {
    if (children[i].exit_status) continue;
    entries.push_back({children[i].process->pidfd(), POLLIN, 0});
    owners.emplace_back(i, true);
    if (children[i].status_fd.get() < 0) continue;
    entries.push_back({children[i].status_fd.get(), POLLIN, 0});
    owners.emplace_back(i, false);
  }

  auto timeout = kTick;
  for (const auto& limit : {deadline, settle})
    if (limit) timeout = std::min(timeout, limit->remaining());
  if (::poll(entries.data(), entries.size(), static_cast<int>(timeout.count())) < 0 &&
      errno != EINTR)
    throw Error(ErrorCode::kUnavailable, std::string("poll: ") + std::strerror(errno));

  // Status before ends: what a process said last belongs to how it ended.
  for (size_t i = 1; i < entries.size(); ++i)
    if (!owners[i].second && entries[i].revents != 0) read_status(children[owners[i].first]);
  std::vector<std::pair<Watched*, int>> ends;
  for (size_t i = 1; i < entries.size(); ++i) {
    if (!owners[i].second || entries[i].revents == 0) continue;
    Watched& child = children[owners[i].first];
    if (const auto status = child.process->try_reap()) ends.emplace_back(&child, *status);
  }
  // Of those that ended within one poll, a crash is rather the cause than an exit code.
  std::stable_partition(ends.begin(), ends.end(),
                        [](const auto& end) { return WIFSIGNALED(end.second); });
  for (const auto& [child, status] : ends)
    ended(*child, status);

  orphans.reap();
  while (const auto number = signals.next())
    signalled(*number);
  observer->on_tick();
}

void Supervisor::Impl::read_status(Watched& child) {
  std::array<char, 8192> buffer;
  for (;;) {
    const ssize_t got = ::recv(child.status_fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || (got < 0 && errno != EAGAIN)) child.status_fd.reset();
    if (got <= 0) return;
    const auto status = decode_status(std::string_view(buffer.data(), static_cast<size_t>(got)));
    if (!status) continue;
    child.last = *status;
    observer->on_status(*child.spec, *status);
  }
}

void Supervisor::Impl::ended(Watched& child, int status) {
  if (child.status_fd.get() >= 0) read_status(child);
  child.exit_status = status;
  const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  const bool obeyed = child.asked_to_stop && WIFSIGNALED(status) &&
                      (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGKILL);
  const bool early = good && !child.spec->driving && !child.asked_to_stop;
  ProcessFailure words{
      .exit_code = WIFEXITED(status) ? std::optional(WEXITSTATUS(status)) : std::nullopt,
      .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  observer->on_exit(*child.spec, good && !early ? "done" : words.what());
  if (phase == Phase::kKilled || (good && !early)) return;
  if (phase == Phase::kFinishing) {
    if (!obeyed)
      result.remarks.push_back(child.spec->name() + " " + words.what() +
                               " after the recipe was done; see " + child.log.string());
    return;
  }
  if (obeyed && phase == Phase::kFailing) return;
  if (obeyed && phase == Phase::kStopping) {
    result.remarks.push_back(child.spec->name() + " ended before it could save a checkpoint");
    return;
  }
  fail(child, status);
}

// Notes a failure; the first one stops everything.
void Supervisor::Impl::fail(Watched& child, std::optional<int> status) {
  ProcessFailure failure{.role = child.spec->context.role,
                         .rank = child.spec->context.rank,
                         .pid = child.process->pid(),
                         .error = child.last.error,
                         .message = child.last.state == "failed" ? child.last.message : "",
                         .of_another_rank = child.last.of_another_rank,
                         .log = child.log,
                         .log_tail = log_tail(child.log, child.log_offset, kTailLines)};

  if (status && WIFEXITED(*status)) failure.exit_code = WEXITSTATUS(*status);
  if (status && WIFSIGNALED(*status)) failure.signal = WTERMSIG(*status);
  if (status && failure.exit_code == 0)
    failure.message = "a serving process ended before the recipe was done";
  failures.push_back(std::move(failure));
  if (phase == Phase::kFailing) {
    // The cause has shown: no more waiting for it.
    if (settle && !is_consequence(failures.back())) settle = Deadline::after(Duration(0));
    return;
  }

  phase = Phase::kFailing;
  note_stopped();
  observer->on_phase(failures.back().name() + " " + failures.back().what() +
                     "; stopping the others");
  deadline = Deadline::after(options.failure_grace);
  // The others are asked to end at once unless the cause may still be among them.
  if (is_consequence(failures.back()) && options.failure_grace > kSettle) {
    settle = Deadline::after(kSettle);
  } else {
    terminate(true, true);
  }
}

// Processes that a stop signal holds: those that waited for one know only that it did not answer.
void Supervisor::Impl::note_stopped() {
  for (const Watched& child : children)
    if (!child.exit_status && child.process->stopped())
      result.remarks.push_back(child.spec->name() + " was held by a stop signal when " +
                               failures.back().name() + " failed: whoever waited for it timed out");
}

void Supervisor::Impl::signalled(int number) {
  if (phase == Phase::kKilled) return;
  if (result.signal != 0) {
    result.killed = true;
    observer->on_phase("killed");
    kill_all();
    return;
  }
  result.signal = number;
  if (phase != Phase::kRunning) return;
  phase = Phase::kStopping;
  observer->on_phase(std::string("stopping (") + ::strsignal(number) +
                     "): saving a checkpoint; once more to stop now");
  deadline = Deadline::after(options.stop_timeout);
  terminate(true, false);
}

void Supervisor::Impl::terminate(bool driving, bool serving) {
  for (auto& child : children) {
    if (child.exit_status || !(child.spec->driving ? driving : serving)) continue;
    child.asked_to_stop = true;
    child.process->signal(SIGTERM);
    child.process->signal(SIGCONT);  // a stopped process could not obey
  }
}

void Supervisor::Impl::kill_all() {
  phase = Phase::kKilled;
  settle.reset();
  deadline = Deadline::after(kReap);
  for (auto& child : children)
    if (!child.exit_status) child.process->signal_group(SIGKILL);
}

// Moves on when the driving processes are done or a time is up.
void Supervisor::Impl::advance() {
  if (settle && settle->expired()) {
    settle.reset();
    terminate(true, true);
  }
  const bool before_the_end = phase == Phase::kRunning || phase == Phase::kStopping;
  if (before_the_end && !any_running(true)) {
    phase = Phase::kFinishing;
    deadline = Deadline::after(options.serving_timeout);
    terminate(false, true);
  } else if (phase == Phase::kRunning && !deadline) {
    const bool first_done = std::any_of(children.begin(), children.end(), [](const Watched& c) {
      return c.spec->driving && c.exit_status;
    });
    if (first_done) deadline = Deadline::after(options.stop_timeout);
  }
  if (deadline && deadline->expired()) on_deadline();
}

void Supervisor::Impl::on_deadline() {
  if (phase == Phase::kRunning || phase == Phase::kStopping) {
    for (auto& child : children)
      if (!child.exit_status && child.spec->driving) fail(child, std::nullopt);
  } else if (phase == Phase::kFinishing) {
    for (const auto& child : children)
      if (!child.exit_status)
        result.remarks.push_back(
            child.spec->name() + " did not end within " + format_duration(options.serving_timeout) +
            " after the recipe was done and was killed; see " + child.log.string());
  } else if (phase == Phase::kKilled) {
    for (auto& child : children) {
      if (child.exit_status) continue;
      result.remarks.push_back("process " + std::to_string(child.process->pid()) + " (" +
                               child.spec->name() +
                               ") is stuck in the system and could not be ended");
      child.exit_status = SIGKILL;
    }
    return;
  }
  kill_all();
}

void Supervisor::Impl::end_orphans() {
  for (const pid_t pid : orphans.end_all(Deadline::after(kReap)))
    result.remarks.push_back("process " + std::to_string(pid) +
                             ", which a process of the run left behind, could not be ended");
}

void Supervisor::Impl::finish() {
  const bool interrupted = driver_said("interrupted");
  if (result.signal == 0 && interrupted) result.signal = SIGTERM;
  // A run that is asked to stop during its last step is done all the same.
  const bool asked = result.signal != 0 && !driver_said("done");
  result.stopped_early = interrupted || driver_said("stopped") || asked;

  if (!failures.empty()) {
    // The first in time of those that are nearest to it.
    const auto cause = std::ranges::min_element(failures, {}, &ProcessFailure::distance_from_cause);
    std::rotate(failures.begin(), cause, cause + 1);
    result.cause = failures.front();
    result.consequences.assign(failures.begin() + 1, failures.end());
    const int code = result.cause->exit_code.value_or(1);
    result.exit_code = code == 2 || code == 3 ? code : 1;
  } else if (result.killed || !driver_succeeded()) {
    result.exit_code = 1;
  } else if (result.signal == SIGINT) {
    result.exit_code = kExitInterrupted;
  } else {
    result.exit_code = result.stopped_early ? kExitStoppedEarly : 0;
  }
}

Supervisor::Supervisor(SupervisorOptions options, SupervisorObserver* observer)
    : impl_(std::make_unique<Impl>(std::move(options), observer)) {
  const auto& processes = impl_->options.processes;
  RETORT_CHECK(std::any_of(processes.begin(), processes.end(), [](const auto& p) {
    return p.driving;
  })) << "nobody drives";
}

Supervisor::~Supervisor() = default;

SupervisorResult Supervisor::run(SignalCatcher& signals) {
  impl_->start_all();
  while (impl_->any_running(true) || impl_->any_running(false)) {
    impl_->advance();
    impl_->poll_once(signals);
  }
  impl_->end_orphans();
  impl_->finish();
  return impl_->result;
}

}  // namespace retort::launch
