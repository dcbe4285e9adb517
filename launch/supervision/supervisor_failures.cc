// How a supervisor takes it that a process fails: the cause is looked for, or a replica of a
// serving role is started again.
#include <algorithm>
#include <csignal>

#include "base/error.h"
#include "launch/supervision/supervisor_impl.h"

namespace retort::launch {
namespace {

// How long a failure that smells of another's (a lost peer) waits for that other one to show.
constexpr std::chrono::milliseconds kSettle{1000};
constexpr size_t kTailLines = 15;
// Before a replica is started again: doubled with each time.
constexpr std::chrono::milliseconds kFirstPause{200}, kLongestPause{30'000};
constexpr std::chrono::milliseconds kLook{500};

bool is_consequence(const ProcessFailure& failure) { return failure.distance_from_cause() > 0; }

}  // namespace

// What is known of it, but for how it ended.
ProcessFailure Supervisor::Impl::failure_of(const Watched& child) const {
  return {.role = child.spec->context.role,
          .rank = child.spec->context.rank,
          .pid = child.process ? child.process->pid() : 0,
          .lost = child.process ? child.process->lost() : "",
          .error = child.last.error,
          .message = child.last.state == "failed" ? child.last.message : "",
          .of_another_rank = child.last.of_another_rank,
          .log = child.log,
          .log_tail = log_tail(child.log, child.log_offset, kTailLines)};
}

void Supervisor::Impl::fail(Watched& child, std::optional<int> status) {
  ProcessFailure failure = failure_of(child);
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
    terminate(/*driving=*/true, /*serving=*/true);
  }
}

// Processes that stand still: those that waited for one know only that it did not answer.
void Supervisor::Impl::note_stopped() {
  for (const Watched& child : children) {
    if (child.gone()) continue;
    const bool held = child.process->stopped();
    if (!held && !child.silent) continue;
    result.remarks.push_back(child.spec->name() +
                             (held ? " was held by a stop signal" : " was silent") + " when " +
                             failures.back().name() + " failed: whoever waited for it timed out");
  }
}

// True when the process belongs to a replica that is started again: all of it, because its ranks
// share a world. One that ends by itself before it ever served has a reason of its own, which
// starting it again does not mend.
bool Supervisor::Impl::restart_replica(Watched& child, const ProcessFailure& how) {
  const ProcessSpec& spec = *child.spec;
  if (spec.driving || (phase != Phase::kRunning && phase != Phase::kStopping)) return false;
  if (to_restart.contains(spec.replica)) return true;  // it was lost with the one that was noted
  const bool can_be_mended = child.served || child.restarts > 0 || how.signal != 0;
  if (!can_be_mended || how.exit_code == 2 || child.restarts >= spec.restarts) return false;

  const int64_t shift = std::min<int64_t>(child.restarts, 20);
  const auto pause = std::min(kFirstPause * (int64_t{1} << shift), kLongestPause);
  to_restart.emplace(spec.replica, Deadline::after(pause));
  for (Watched& other : children) {
    if (other.spec->replica != spec.replica) continue;
    ++other.restarts;
    if (other.exit_status) continue;
    other.process->signal_group(SIGKILL);
    // One that no signal reaches ends by itself.
    if (other.joined) options.supervision->stop(other.spec->name(), options.failure_grace);
  }

  const std::string times =
      std::to_string(child.restarts) + " of " + std::to_string(spec.restarts) + " times";
  const std::string why = how.started ? "" : ": " + how.message;
  observer->on_phase(spec.name() + " " + how.what() + why + "; it is started again, " + times);
  result.remarks.push_back(spec.name() + " " + how.what() + why + " and was started again (" +
                           times + "); see " + child.log.string());
  return true;
}

// Those whose processes have all ended and whose pause is over.
void Supervisor::Impl::start_replicas() {
  if (phase != Phase::kRunning && phase != Phase::kStopping) return;
  if (drivers_are_over()) return;  // nobody will ask it
  std::vector<std::string> due;
  for (const auto& [replica, when] : to_restart) {
    const bool ended = std::all_of(children.begin(), children.end(), [&](const Watched& c) {
      return c.spec->replica != replica || c.exit_status;
    });
    if (ended && when.expired()) due.push_back(replica);
  }

  for (const std::string& replica : due) {
    if (phase == Phase::kFailing) return;  // the replica before it could not be started
    to_restart.erase(replica);
    start_replica(replica);
  }
}

// What keeps a process from starting (no room for one, a log that cannot be opened) may pass: the
// replica is lost once more, with those of its processes that have started.
void Supervisor::Impl::start_replica(const std::string& name) {
  std::vector<Watched*> replica;
  for (Watched& child : children)
    if (child.spec->replica == name) replica.push_back(&child);
  if (options.place_again && !place_replica(replica)) return;

  for (Watched* child : replica) {
    try {
      start(*child);
    } catch (const Error& error) {
      not_started(*child, error);
      return;
    }
  }
}

// Its answers are those of the others of its role, which have more to do then.
bool Supervisor::Impl::place_replica(const std::vector<Watched*>& replica) {
  std::vector<ProcessSpec*> specs;
  for (const Watched* child : replica)
    specs.push_back(child->spec);
  try {
    options.place_again(specs);
    return true;
  } catch (const Error& error) {
    if (!others_live(*specs.front())) {
      not_started(*replica.front(), error);
      return false;
    }
    const std::string words =
        specs.front()->replica + " is given up, the others of its role go on: " + error.message();
    observer->on_phase(words);
    result.remarks.push_back(words);
    return false;
  }
}

bool Supervisor::Impl::others_live(const ProcessSpec& spec) const {
  return std::ranges::any_of(children, [&](const Watched& other) {
    const bool of_role = other.spec->context.role == spec.context.role;
    return of_role && other.spec->replica != spec.replica && !other.exit_status;
  });
}

void Supervisor::Impl::not_started(Watched& child, const Error& error) {
  ProcessFailure failure = failure_of(child);
  failure.started = false;
  failure.error = to_string(error.code());
  failure.message = error.message();
  if (!restart_replica(child, failure)) fail(std::move(failure));
}

// A process that a stop signal holds cannot answer. One that serves and can be started again is
// killed once its peers have given it up.
void Supervisor::Impl::end_held() {
  // A run that is asked to stop needs it too, for the step before its checkpoint.
  const bool before_the_end = phase == Phase::kRunning || phase == Phase::kStopping;
  if (!next_look.expired() || !before_the_end) return;
  next_look = Deadline::after(kLook);
  for (Watched& child : children) {
    const bool replaceable = !child.spec->driving && child.restarts < child.spec->restarts;
    if (!replaceable || child.gone() || !child.process->stopped()) {
      child.held_until.reset();
      continue;
    }
    if (!child.held_until) child.held_until = Deadline::after(options.held_timeout);
    if (!child.held_until->expired()) continue;
    observer->on_phase(child.spec->name() + " was held by a stop signal for " +
                       format_duration(options.held_timeout) + " and is killed");
    child.process->signal_group(SIGKILL);
  }
}

// The driving processes ended well and did not get through with how: this process stood still, or
// the connection was cut, when they said it.
bool Supervisor::Impl::cut_off() {
  const bool said = driver_said("done") || driver_said("stopped") || driver_said("interrupted") ||
                    driver_said("diverged");
  const bool under_way = driver_said("training") || driver_said("saving");
  if (said || !under_way || !driver_succeeded() || result.signal != 0) return false;
  result.remarks.push_back(
      "the driving processes ended well, but their last word never arrived: they may have saved "
      "and stopped because this launcher stood still; see their logs");
  return true;
}

// A run whose last step was made and saved is done, even where a serving process had failed for
// good when the driving ones said so.
void Supervisor::Impl::forgive_late_failures() {
  if (!drivers_said_last({"done"}) || !driver_succeeded()) return;
  for (const ProcessFailure& failure : failures)
    result.remarks.push_back(failure.name() + " " + failure.what() +
                             " while the recipe was done without it; see " + failure.log.string());
  failures.clear();
}

void Supervisor::Impl::finish() {
  forgive_late_failures();
  const bool interrupted = driver_said("interrupted");
  if (result.signal == 0 && interrupted) result.signal = SIGTERM;
  // A run that is asked to stop during its last step is done all the same.
  const bool asked = result.signal != 0 && !driver_said("done");
  const bool diverged = driver_said("diverged");
  result.stopped_early = interrupted || diverged || driver_said("stopped") || asked || cut_off();
  for (const Watched& child : children)
    if (child.spec->driving && child.last.warning && result.warning.empty())
      result.warning = child.last.message;

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
  } else if (diverged) {
    result.exit_code = kExitDiverged;
  } else if (result.signal == SIGINT) {
    result.exit_code = kExitInterrupted;
  } else {
    result.exit_code = result.stopped_early ? kExitStoppedEarly : 0;
  }
}

}  // namespace retort::launch
