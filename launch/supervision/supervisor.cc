#include "launch/supervision/supervisor.h"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/deadline.h"
#include "base/error.h"
#include "base/sizes.h"
#include "launch/process/orphans.h"
#include "launch/supervision/backend.h"
#include "launch/supervision/replicas.h"
#include "launch/supervision/run_end.h"
#include "launch/supervision/watched_processes.h"

namespace retort::launch {
namespace {

// Observers and Backend::work() are promised five calls a second, so no poll lasts longer.
constexpr std::chrono::milliseconds kTick{100};
// A process that is stuck in the kernel outlives SIGKILL; the launcher gives it up after this time.
constexpr std::chrono::milliseconds kReapKilled{10'000};
// A failure that smells of another's (a lost peer) waits this long for that other one to show.
constexpr std::chrono::milliseconds kSettle{1000};
// A process that lives dials again at once when its connection breaks.
constexpr std::chrono::milliseconds kDialAgain{2'000};

bool is_consequence(const ProcessFailure& failure) { return failure.distance_from_cause() > 0; }

}  // namespace

// The phase that the run is in, and what moves it on.
struct Supervisor::Impl {
  enum class Phase {
    kRunning,    // until something happens
    kStopping,   // a signal: the driving processes were asked to save and end
    kFinishing,  // the driving processes are done: the serving ones were asked to end
    kFailing,    // something failed: all were asked to end
    kKilled,     // everything was killed
  };

  SupervisorOptions options;
  SupervisorObserver quiet;
  SupervisorObserver* observer;
  // Ends what the processes leave behind after they have ended.
  Orphans orphans{[this](pid_t pid) {
    return options.backend->is_child(pid) || (options.is_helper && options.is_helper(pid));
  }};
  WatchedProcesses processes;
  SupervisorResult result;
  Replicas replicas;
  std::vector<ProcessFailure> failures;  // in time
  Phase phase = Phase::kRunning;
  bool was_asked = false;            // to stop, by a signal to this process
  std::optional<Deadline> deadline;  // of the phase
  std::optional<Deadline> settle;    // after the first failure: until then a better cause may show

  Impl(SupervisorOptions o, SupervisorObserver* o2)
      : options(std::move(o)),
        observer(o2 ? o2 : &quiet),
        processes(options, *observer),
        replicas({.run = options,
                  .observer = *observer,
                  .processes = processes,
                  .result = result,
                  .is_under_way = [this] { return is_under_way(); },
                  .fail = [this](ProcessFailure failure) { fail(std::move(failure)); }}) {}

  // Neither done nor failed.
  bool is_under_way() const { return phase == Phase::kRunning || phase == Phase::kStopping; }

  void poll_once(SignalCatcher& signals);
  void take_events();
  void on_report(Watched& child, const std::string& report);
  void look_for_joined();
  void ended(Watched& child, int status);
  void signalled(int number, bool is_own);
  void advance();
  void on_deadline();
  void terminate(bool driving, bool serving);
  void kill_all();
  void fail(Watched& child, std::optional<int> status);
  void fail(ProcessFailure failure);
  void note_stopped();
  void end_orphans();
};

// Waits for the next event, at most a tick, and takes what has come.
void Supervisor::Impl::poll_once(SignalCatcher& signals) {
  std::vector<pollfd> entries{{signals.fd(), POLLIN, 0}, {options.supervision->fd(), POLLIN, 0}};
  options.backend->poll_for(entries);

  // A deadline within the tick ends the poll, so that nothing that is due waits for the next one.
  auto timeout = kTick;
  for (const auto& limit : {deadline, settle})
    if (limit) timeout = std::min(timeout, limit->remaining());
  if (::poll(entries.data(), entries.size(), static_cast<int>(timeout.count())) < 0 &&
      errno != EINTR)
    throw Error(ErrorCode::kUnavailable, std::string("poll: ") + std::strerror(errno));

  // The order matters: a status is taken first and told last, because what a process said before it
  // ended belongs to how it ended (WatchedProcesses::reap).
  options.backend->work();
  processes.reap();
  take_events();
  for (const auto& [child, status] : processes.ends())
    ended(*child, status);

  orphans.reap();
  while (const auto number = signals.next())
    signalled(*number, /*is_own=*/true);
  if (phase != Phase::kRunning) observer->on_stopping();
  observer->on_tick();
}

// Takes what the processes say over their supervision connections. What comes from an earlier life,
// or from a process whose end is known, would be taken for the life of now and is dropped.
void Supervisor::Impl::take_events() {
  using Kind = rpc::SupervisionEvent::Kind;
  std::vector<Watched>& all = processes.all();
  for (const rpc::SupervisionEvent& event : options.supervision->take()) {
    const auto child = std::ranges::find_if(all, [&](const Watched& c) {
      return c.life == event.restart && !c.exit_status && c.spec->name() == event.process;
    });
    if (child == all.end()) continue;

    switch (event.kind) {
      case Kind::kConnected:
        child->connected = true;
        child->connect_by.reset();
        child->back_by.reset();
        break;
      case Kind::kDisconnected:
        child->connected = false;
        child->back_by = Deadline::after(kDialAgain);
        break;
      case Kind::kReport: on_report(*child, event.report); break;
      case Kind::kStopping: child->answer_by.reset(); break;
      case Kind::kSilent:
        child->silent = true;
        // Nobody here will see the end of a process that joined, so its silence is its end. A
        // process that the backend started is only named: its end will be seen.
        if (child->joined) {
          child->joined->lose();
          break;
        }
        observer->on_phase(event.process + " is silent: it stands still, or is cut off");
        break;
      case Kind::kHeard:
        child->silent = false;
        observer->on_phase(event.process + " is heard again");
        break;
    }
  }
}

void Supervisor::Impl::on_report(Watched& child, const std::string& report) {
  const auto status = decode_status(report);
  if (!status) return;

  // A process that joined reports a signal that it got, which is one to the run. A signal that this
  // supervisor brought about, or that comes while all are being ended, asks for nothing new.
  if (child.joined && status->signal != 0) {
    const bool is_asked = child.asked_to_stop || phase == Phase::kFailing;
    if (!is_asked) signalled(to_int(status->signal), /*is_own=*/false);
    return;
  }

  // Nobody here reaps it either, so its last word stands for the exit status.
  if (child.joined && status->ended) {
    child.joined->end(to_int(std::clamp<int64_t>(*status->ended, -64, 255)));
    return;
  }
  child.last = *status;
  child.served |= status->state == "serving";
  observer->on_status(*child.spec, *status);
}

// A process that was told what it is and does not come has ended meanwhile. In a run that fails
// already, one whose connection broke is more likely the cause than somebody who will be heard
// again.
void Supervisor::Impl::look_for_joined() {
  for (Watched& child : processes.all()) {
    if (!child.joined || child.gone()) continue;
    const bool never_came = child.connect_by && child.connect_by->expired();
    const bool is_cause = phase == Phase::kFailing && child.back_by && child.back_by->expired();
    if (never_came || is_cause) child.joined->lose();
  }
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

  // Once the recipe is done nobody misses a serving process, so that its failure is a remark and
  // does not fail the run.
  const bool is_needed = child.spec->driving || !processes.drivers_are_over();
  if (phase == Phase::kFinishing || !is_needed) {
    if (!obeyed)
      result.remarks.push_back(child.spec->name() + " " + words.what() +
                               " after the recipe was done; see " + child.log.string());
    return;
  }

  // What the run still needs is replaced, or ends the run. A process that obeyed while all are
  // being ended is no further failure.
  if (obeyed && phase == Phase::kFailing) return;
  if (replicas.restart(child, words)) return;
  if (obeyed && phase == Phase::kStopping) {
    result.remarks.push_back(child.spec->name() + " ended before it could save a checkpoint");
    return;
  }
  fail(child, status);
}

// A scheduler signals this process and those of the run at one time, in any order. Only a second
// signal to this process itself kills everything: one that a process of the run reports does not
// count as the first.
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

  // The serving processes stay, because the step before the checkpoint still needs them.
  terminate(/*driving=*/true, /*serving=*/false);
}

void Supervisor::Impl::terminate(bool driving, bool serving) {
  processes.ask_to_stop(driving, serving, deadline ? deadline->remaining() : options.stop_timeout);
}

void Supervisor::Impl::kill_all() {
  phase = Phase::kKilled;
  settle.reset();
  deadline = Deadline::after(kReapKilled);
  processes.kill();
}

void Supervisor::Impl::fail(Watched& child, std::optional<int> status) {
  ProcessFailure failure = child.failure();
  if (status && WIFEXITED(*status)) failure.exit_code = WEXITSTATUS(*status);
  if (status && WIFSIGNALED(*status)) failure.signal = WTERMSIG(*status);
  if (status && failure.exit_code == 0)
    failure.message = "a serving process ended before the recipe was done";
  fail(std::move(failure));
}

// Notes a failure; the first one stops everything.
void Supervisor::Impl::fail(ProcessFailure failure) {
  failures.push_back(std::move(failure));
  if (phase == Phase::kFailing) {
    // The cause has shown, so nothing is left to wait for.
    if (settle && !is_consequence(failures.back())) settle = Deadline::after(Duration(0));
    return;
  }

  phase = Phase::kFailing;
  // A stopped process is noted before anybody is asked to end: the request continues it (SIGCONT).
  note_stopped();
  observer->on_phase(failures.back().name() + " " + failures.back().what() +
                     "; stopping the others");
  deadline = Deadline::after(options.failure_grace);
  // The others are asked to end at once unless the cause may still be among them: it would be asked
  // to end before it could say what went wrong.
  if (is_consequence(failures.back()) && options.failure_grace > kSettle) {
    settle = Deadline::after(kSettle);
  } else {
    terminate(/*driving=*/true, /*serving=*/true);
  }
}

// Names the processes that stand still, since those that waited for one know only that it did not
// answer.
void Supervisor::Impl::note_stopped() {
  for (const Watched& child : processes.all()) {
    if (child.gone()) continue;
    const bool held = child.process->stopped();
    if (!held && !child.silent) continue;
    result.remarks.push_back(child.spec->name() +
                             (held ? " was held by a stop signal" : " was silent") + " when " +
                             failures.back().name() + " failed: whoever waited for it timed out");
  }
}

// Moves on when the driving processes are done or a time is up.
void Supervisor::Impl::advance() {
  if (settle && settle->expired()) {
    settle.reset();
    terminate(/*driving=*/true, /*serving=*/true);
  }

  // A driving process may need its servers to its very end, so these are asked to end only when no
  // driving one is left. The driving ones end together: after the first, a deadline keeps one that
  // hangs from holding the run for ever.
  if (is_under_way() && !processes.any_running(true)) {
    phase = Phase::kFinishing;
    deadline = Deadline::after(options.serving_timeout);
    terminate(/*driving=*/false, /*serving=*/true);
  } else if (phase == Phase::kRunning && !deadline) {
    const bool first_done = std::ranges::any_of(
        processes.all(), [](const Watched& c) { return c.spec->driving && c.exit_status; });
    if (first_done) deadline = Deadline::after(options.stop_timeout);
  }
  processes.signal_unanswered();
  if (deadline && deadline->expired()) on_deadline();
  replicas.start_due();
  replicas.end_held();
  look_for_joined();
}

void Supervisor::Impl::on_deadline() {
  if (is_under_way()) {
    for (auto& child : processes.all())
      if (!child.gone() && child.spec->driving) fail(child, std::nullopt);
  } else if (phase == Phase::kFinishing) {
    // The recipe is done: a serving process that is killed now costs the run nothing.
    for (const auto& child : processes.all())
      if (!child.gone())
        result.remarks.push_back(
            child.spec->name() + " did not end within " + format_duration(options.serving_timeout) +
            " after the recipe was done and was killed; see " + child.log.string());
  } else if (phase == Phase::kKilled) {
    // Even SIGKILL does not end a process that is stuck in the kernel, and one that joined may be
    // out of reach. They are named and counted as ended, because the launcher must end all the
    // same.
    for (auto& child : processes.all()) {
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
  for (const pid_t pid : orphans.end_all(Deadline::after(kReapKilled)))
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
  impl_->processes.start_all();
  while (impl_->processes.any_running(true) || impl_->processes.any_running(false)) {
    impl_->advance();
    impl_->poll_once(signals);
  }
  // Nobody of the run is left who could leave more behind, so what there is can be ended for good.
  impl_->end_orphans();
  judge_end(impl_->processes, std::move(impl_->failures), impl_->result);
  return impl_->result;
}

}  // namespace retort::launch
