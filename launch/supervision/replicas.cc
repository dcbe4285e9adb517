#include "launch/supervision/replicas.h"

#include <algorithm>
#include <csignal>

namespace retort::launch {
namespace {

// The pause before a replica is started again. It doubles with each time, because what keeps the
// replica from living may need a while to pass.
constexpr std::chrono::milliseconds kFirstPause{200}, kLongestPause{30'000};
constexpr std::chrono::milliseconds kLook{500};

}  // namespace

bool Replicas::restart(Watched& child, const ProcessFailure& how) {
  const ProcessSpec& spec = *child.spec;
  if (spec.driving || !options_.is_under_way()) return false;
  if (to_restart_.contains(spec.replica)) return true;  // it was lost with the one that was noted
  // A process that ended by itself before it ever served has a reason of its own, and exit code 2
  // says that the recipe is wrong: another start would mend neither.
  const bool can_be_mended = child.served || child.restarts > 0 || how.signal != 0;
  if (!can_be_mended || how.exit_code == 2 || child.restarts >= spec.restarts) return false;

  const int64_t shift = std::min<int64_t>(child.restarts, 20);
  const auto pause = std::min(kFirstPause * (int64_t{1} << shift), kLongestPause);
  to_restart_.emplace(spec.replica, Deadline::after(pause));

  // The ranks of a replica share a world, so none of them can go on without this one.
  for (Watched& other : options_.processes.all()) {
    if (other.spec->replica != spec.replica) continue;
    ++other.restarts;
    if (other.exit_status) continue;
    other.process->signal_group(SIGKILL);
    // No signal may reach a process that joined. It is asked over its connection and ends by
    // itself.
    if (other.joined)
      options_.run.supervision->stop(other.spec->name(), options_.run.failure_grace);
  }

  const std::string times =
      std::to_string(child.restarts) + " of " + std::to_string(spec.restarts) + " times";
  const std::string why = how.started ? "" : ": " + how.message;
  options_.observer.on_phase(spec.name() + " " + how.what() + why + "; it is started again, " +
                             times);
  options_.result.remarks.push_back(spec.name() + " " + how.what() + why +
                                    " and was started again (" + times + "); see " +
                                    child.log.string());
  return true;
}

void Replicas::start_due() {
  if (!options_.is_under_way()) return;
  if (options_.processes.drivers_are_over()) return;  // nobody will ask it
  const std::vector<Watched>& all = options_.processes.all();

  // The replicas that are due are collected first, because a start that fails changes the map.
  std::vector<std::string> due;
  for (const auto& [replica, when] : to_restart_) {
    const bool ended = std::all_of(all.begin(), all.end(), [&](const Watched& c) {
      return c.spec->replica != replica || c.exit_status;
    });
    if (ended && when.expired()) due.push_back(replica);
  }

  for (const std::string& replica : due) {
    if (!options_.is_under_way()) return;  // the replica before it could not be started
    to_restart_.erase(replica);
    start(replica);
  }
}

void Replicas::start(const std::string& name) {
  std::vector<Watched*> replica;
  for (Watched& child : options_.processes.all())
    if (child.spec->replica == name) replica.push_back(&child);
  if (options_.run.place_again && !place(replica)) return;

  for (Watched* child : replica) {
    try {
      options_.processes.start(*child);
    } catch (const Error& error) {
      // The replica is lost once more, with those of its ranks that have started.
      not_started(*child, error);
      return;
    }
  }
}

// Finds a host for a replica that was lost. Where none has room the others of its role give its
// answers too and have more to do; it is a failure only if there are no others.
bool Replicas::place(const std::vector<Watched*>& replica) {
  std::vector<ProcessSpec*> specs;
  for (const Watched* child : replica)
    specs.push_back(child->spec);
  try {
    options_.run.place_again(specs);
    return true;
  } catch (const Error& error) {
    if (!others_live(*specs.front())) {
      not_started(*replica.front(), error);
      return false;
    }
    const std::string words =
        specs.front()->replica + " is given up, the others of its role go on: " + error.message();
    options_.observer.on_phase(words);
    options_.result.remarks.push_back(words);
    return false;
  }
}

bool Replicas::others_live(const ProcessSpec& spec) const {
  return std::ranges::any_of(options_.processes.all(), [&](const Watched& other) {
    const bool of_role = other.spec->context.role == spec.context.role;
    return of_role && other.spec->replica != spec.replica && !other.exit_status;
  });
}

void Replicas::not_started(Watched& child, const Error& error) {
  ProcessFailure failure = child.failure();
  failure.started = false;
  failure.error = to_string(error.code());
  failure.message = error.message();
  if (!restart(child, failure)) options_.fail(std::move(failure));
}

void Replicas::end_held() {
  // A run that is asked to stop needs its serving processes too, for the step before its
  // checkpoint.
  if (!next_look_.expired() || !options_.is_under_way()) return;
  next_look_ = Deadline::after(kLook);
  for (Watched& child : options_.processes.all()) {
    // A held process that nobody can replace is left alone, since it may still be let go.
    const bool replaceable = !child.spec->driving && child.restarts < child.spec->restarts;
    if (!replaceable || child.gone() || !child.process->stopped()) {
      child.held_until.reset();
      continue;
    }
    if (!child.held_until) child.held_until = Deadline::after(options_.run.held_timeout);
    if (!child.held_until->expired()) continue;
    options_.observer.on_phase(child.spec->name() + " was held by a stop signal for " +
                               format_duration(options_.run.held_timeout) + " and is killed");
    child.process->signal_group(SIGKILL);
  }
}

}  // namespace retort::launch
