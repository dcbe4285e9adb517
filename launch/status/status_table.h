// What `retort status` shows.
#pragma once

#include <string>
#include <vector>

#include "launch/status/run_status.h"

namespace retort::launch {

// The lines of one look at a run, none wider than `columns` (0: as wide as they are): the run, its
// position, a row for each process, then what people must know: how it failed, or that nobody keeps
// this up to date any more (`lost`).
std::vector<std::string> render_status(const RunStatus& status, RunStatus::Time now, bool lost,
                                       int columns);

}  // namespace retort::launch
