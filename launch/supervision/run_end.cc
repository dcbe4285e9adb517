#include "launch/supervision/run_end.h"

#include <algorithm>
#include <csignal>

namespace retort::launch {
namespace {

// True if the driving processes ended well and never got through with how: this process stood
// still, or the connection was cut, when they said it.
bool was_cut_off(const WatchedProcesses& processes, SupervisorResult& result) {
  const bool said = processes.driver_said("done") || processes.driver_said("stopped") ||
                    processes.driver_said("interrupted") || processes.driver_said("diverged");
  const bool under_way = processes.driver_said("training") || processes.driver_said("saving");
  if (said || !under_way || !processes.driver_succeeded() || result.signal != 0) return false;
  result.remarks.push_back(
      "the driving processes ended well, but their last word never arrived: they may have saved "
      "and stopped because this launcher stood still; see their logs");
  return true;
}

// Turns failures into remarks where all driving processes were done and exited with 0: the run has
// its result, whatever happened to those that served it.
void forgive_late_failures(const WatchedProcesses& processes, std::vector<ProcessFailure>& failures,
                           SupervisorResult& result) {
  if (!processes.drivers_said_last({"done"}) || !processes.driver_succeeded()) return;
  for (const ProcessFailure& failure : failures)
    result.remarks.push_back(failure.name() + " " + failure.what() +
                             " while the recipe was done without it; see " + failure.log.string());
  failures.clear();
}

}  // namespace

void judge_end(const WatchedProcesses& processes, std::vector<ProcessFailure> failures,
               SupervisorResult& result) {
  forgive_late_failures(processes, failures, result);
  const bool interrupted = processes.driver_said("interrupted");
  // A signal to one of the driving processes counts as SIGTERM to the launcher (supervisor.h).
  if (result.signal == 0 && interrupted) result.signal = SIGTERM;
  // A run that is asked to stop during its last step is done all the same.
  const bool asked = result.signal != 0 && !processes.driver_said("done");
  const bool diverged = processes.driver_said("diverged");
  result.stopped_early = interrupted || diverged || processes.driver_said("stopped") || asked ||
                         was_cut_off(processes, result);
  for (const Watched& child : processes.all())
    if (child.spec->driving && child.last.warning && result.warning.empty())
      result.warning = child.last.message;

  if (!failures.empty()) {
    // The failures are in time, so that this is the first of those that are nearest to the cause.
    const auto cause = std::ranges::min_element(failures, {}, &ProcessFailure::distance_from_cause);
    std::rotate(failures.begin(), cause, cause + 1);
    result.cause = failures.front();
    result.consequences.assign(failures.begin() + 1, failures.end());
    const int code = result.cause->exit_code.value_or(1);
    result.exit_code = code == 2 || code == 3 ? code : 1;
  } else if (result.killed || !processes.driver_succeeded()) {
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
