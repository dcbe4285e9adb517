// What the end of a run's processes comes to, once none of them is left.
#pragma once

#include <vector>

#include "launch/supervision/supervisor.h"
#include "launch/supervision/watched_processes.h"

namespace retort::launch {

// Writes the rest of `result`, of which the signal that asked to stop, `killed` and the remarks are
// there. `failures`: in time. The exit code:
//
//   2, 3  the code of the failure that is nearest to the cause; 1 where that has another
//   1     everything was killed, or a driving process did not end with 0
//   kExitDiverged, kExitInterrupted, kExitStoppedEarly
//         a checkpoint was saved: as supervisor.h says
//   0     done
//
// A run whose last step was made and saved is done, even where a serving process had failed for
// good when the driving ones said so.
void judge_end(const WatchedProcesses& processes, std::vector<ProcessFailure> failures,
               SupervisorResult& result);

}  // namespace retort::launch
