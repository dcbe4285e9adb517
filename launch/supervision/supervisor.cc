#include "launch/supervision/supervisor.h"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "launch/supervision/supervisor_impl.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kReap{10'000};
// For what a process said before it ended to arrive; the end of its connection comes after that.
constexpr std::chrono::milliseconds kHearOut{1'000};

}  // namespace

void Supervisor::Impl::start_all() {
  std::error_code failed;
  fs::create_directories(options.log_folder, failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                "cannot create folder " + options.log_folder.string() + ": " + failed.message());
  children.resize(options.processes.size());
  for (size_t i = 0; i < children.size(); ++i) {
    children[i].spec = &options.processes[i];
    start(children[i]);
  }
}

void Supervisor::Impl::start(Watched& child) {
  // Only its first life is one that somebody else started.
  if (child.restarts > 0) child.spec->joined.reset();
  const bool is_elsewhere = child.spec->joined && !child.spec->joined->is_replaceable;

  // Each life has a number: what is told of an earlier one is not taken for this one's.
  ChildContext context = child.spec->context;
  context.stop_timeout = options.stop_timeout;
  context.restart = child.spec->context.restart + child.restarts;
  context.life = child.spec->context.life + child.restarts;
  child.answer_by.reset();
  child.last = {};
  child.served = child.connected = child.silent = false;
  child.life = context.life;

  // Its log may hold earlier lives: what it says in this one begins behind them.
  const auto& joined = child.spec->joined;
  child.log = options.log_folder / (context.role + "-" + std::to_string(context.rank) + ".log");
  if (is_elsewhere) child.log = joined->log;
  if (child.log.empty()) child.log = "its own output on " + child.spec->host;
  std::error_code missing;
  const auto size = fs::file_size(child.log, missing);
  child.log_offset = missing ? 0 : static_cast<int64_t>(size);

  // It is expected before it starts, since it dials at once.
  options.supervision->expect(child.spec->name(), child.life);
  child.joined = nullptr;
  child.process.reset();
  if (child.spec->joined)
    start_joined(child, context);
  else
    child.process = backend.start({.context = context,
                                   .host = child.spec->host,
                                   .driving = child.spec->driving,
                                   .arguments = child.spec->arguments,
                                   .env = child.spec->env,
                                   .log = child.log});

  child.exit_status.reset();
  child.reaped.reset();
  observer->on_start(*child.spec, child.process->pid());
}

void Supervisor::Impl::start_joined(Watched& child, const ChildContext& context) {
  if (child.spec->joined->tell) child.spec->joined->tell(context);
  auto process = std::make_unique<JoinedProcess>(*child.spec->joined, child.spec->host);
  child.joined = process.get();
  child.process = std::move(process);
  child.connect_by = Deadline::after(options.connect_timeout);
}

// Waits for the next event, at most a tick.
void Supervisor::Impl::poll_once(SignalCatcher& signals) {
  std::vector<pollfd> entries{{signals.fd(), POLLIN, 0}, {options.supervision->fd(), POLLIN, 0}};
  backend.poll_for(entries);

  auto timeout = kTick;
  for (const auto& limit : {deadline, settle})
    if (limit) timeout = std::min(timeout, limit->remaining());
  if (::poll(entries.data(), entries.size(), static_cast<int>(timeout.count())) < 0 &&
      errno != EINTR)
    throw Error(ErrorCode::kUnavailable, std::string("poll: ") + std::strerror(errno));

  backend.work();
  for (const auto& [child, status] : take_ends())
    ended(*child, status);

  orphans.reap();
  while (const auto number = signals.next())
    signalled(*number, /*is_own=*/true);
  if (phase != Phase::kRunning) observer->on_stopping();
  observer->on_tick();
}

// Status before ends: what a process said last belongs to how it ended. What it knew to have
// arrived is here when it has ended; what else it sent is here when its connection has.
std::vector<std::pair<Watched*, int>> Supervisor::Impl::take_ends() {
  for (Watched& child : children) {
    if (child.gone()) continue;
    child.reaped = child.process->try_reap();
    if (child.reaped) child.heard_out_by = Deadline::after(kHearOut);
  }
  take_events();

  std::vector<std::pair<Watched*, int>> ends;
  for (Watched& child : children) {
    if (child.exit_status || !child.reaped) continue;
    if (child.connected && !child.heard_out_by->expired()) continue;
    ends.emplace_back(&child, *child.reaped);
  }
  // Of those that ended within one poll, a crash is rather the cause than an exit code.
  std::stable_partition(ends.begin(), ends.end(),
                        [](const auto& end) { return WIFSIGNALED(end.second); });
  return ends;
}

void Supervisor::Impl::ended(Watched& child, int status) {
  child.exit_status = status;

  // Exit code 0 is a good end, but too early for a serving process that nobody has asked to end.
  // One that died of the signal that it was sent has obeyed.
  const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  const bool was_seen = child.process->lost().empty();
  const bool obeyed = child.asked_to_stop && was_seen && WIFSIGNALED(status) &&
                      (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGKILL);
  const bool early = good && !child.spec->driving && !child.asked_to_stop;

  ProcessFailure words{
      .exit_code = WIFEXITED(status) ? std::optional(WEXITSTATUS(status)) : std::nullopt,
      .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
      .lost = child.process->lost()};
  observer->on_end(*child.spec, {.status = status, .as_asked = (good && !early) || obeyed});
  observer->on_exit(*child.spec, good && !early ? "done" : words.what());
  if (phase == Phase::kKilled || (good && !early)) return;

  // Nobody misses it any more: the recipe is done.
  const bool is_needed = child.spec->driving || !drivers_are_over();
  if (phase == Phase::kFinishing || !is_needed) {
    if (!obeyed)
      result.remarks.push_back(child.spec->name() + " " + words.what() +
                               " after the recipe was done; see " + child.log.string());
    return;
  }

  // What is missed is replaced, or ends the run.
  if (obeyed && phase == Phase::kFailing) return;
  if (restart_replica(child, words)) return;
  if (obeyed && phase == Phase::kStopping) {
    result.remarks.push_back(child.spec->name() + " ended before it could save a checkpoint");
    return;
  }
  fail(child, status);
}

// A scheduler asks this process and those of the run at one time, in any order: what a process of
// the run tells is not the first time that this one is asked.
void Supervisor::Impl::signalled(int number, bool is_own) {
  if (phase == Phase::kKilled) return;
  const bool is_second = is_own && was_asked;
  was_asked |= is_own;
  if (!is_second && result.signal != 0) return;
  if (is_second) {
    result.killed = true;
    observer->on_phase("killed: what came after the last checkpoint is lost");
    kill_all();
    return;
  }
  result.signal = number;
  if (phase != Phase::kRunning) return;  // it is ending already
  phase = Phase::kStopping;
  observer->on_phase(std::string("stopping (") + ::strsignal(number) +
                     "): saving a checkpoint; once more to stop now");
  deadline = Deadline::after(options.stop_timeout);
  terminate(/*driving=*/true, /*serving=*/false);
}

void Supervisor::Impl::terminate(bool driving, bool serving) {
  for (auto& child : children) {
    if (child.gone() || !(child.spec->driving ? driving : serving)) continue;
    child.asked_to_stop = true;
    options.supervision->stop(child.spec->name(),
                              deadline ? deadline->remaining() : options.stop_timeout);
    if (child.connected)
      child.answer_by = Deadline::after(options.answer_timeout);
    else
      child.process->signal(SIGTERM);
    child.process->signal(SIGCONT);  // a stopped process could not obey
  }
}

// A process whose connection does not answer gets signals all the same, unless it joined.
void Supervisor::Impl::signal_unanswered() {
  for (Watched& child : children) {
    if (child.gone() || !child.answer_by || !child.answer_by->expired()) continue;
    child.answer_by.reset();
    child.process->signal(SIGTERM);
    child.process->signal(SIGCONT);
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
    terminate(/*driving=*/true, /*serving=*/true);
  }
  const bool before_the_end = phase == Phase::kRunning || phase == Phase::kStopping;
  if (before_the_end && !any_running(true)) {
    phase = Phase::kFinishing;
    deadline = Deadline::after(options.serving_timeout);
    terminate(/*driving=*/false, /*serving=*/true);
  } else if (phase == Phase::kRunning && !deadline) {
    const bool first_done = std::any_of(children.begin(), children.end(), [](const Watched& c) {
      return c.spec->driving && c.exit_status;
    });
    if (first_done) deadline = Deadline::after(options.stop_timeout);
  }
  signal_unanswered();
  if (deadline && deadline->expired()) on_deadline();
  start_replicas();
  end_held();
  look_for_joined();
}

void Supervisor::Impl::on_deadline() {
  if (phase == Phase::kRunning || phase == Phase::kStopping) {
    for (auto& child : children)
      if (!child.gone() && child.spec->driving) fail(child, std::nullopt);
  } else if (phase == Phase::kFinishing) {
    for (const auto& child : children)
      if (!child.gone())
        result.remarks.push_back(
            child.spec->name() + " did not end within " + format_duration(options.serving_timeout) +
            " after the recipe was done and was killed; see " + child.log.string());
  } else if (phase == Phase::kKilled) {
    for (auto& child : children) {
      if (child.exit_status) continue;
      if (child.joined)
        result.remarks.push_back(child.spec->name() + " on " + child.spec->host +
                                 " has not said that it ended; it ends when it finds that this "
                                 "process is gone");
      else
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

Supervisor::Supervisor(SupervisorOptions options, SupervisorObserver* observer) {
  RETORT_CHECK(options.backend != nullptr) << "nobody starts the processes";
  impl_ = std::make_unique<Impl>(std::move(options), observer);
  const auto& processes = impl_->options.processes;
  RETORT_CHECK(std::any_of(processes.begin(), processes.end(), [](const auto& p) {
    return p.driving;
  })) << "nobody drives";
  RETORT_CHECK(impl_->options.supervision != nullptr) << "the processes have nobody to tell";
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
