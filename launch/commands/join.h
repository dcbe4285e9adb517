// retort join: one process that becomes one rank of a run, wherever it was started.
#pragma once

#include <string>
#include <vector>

#include "launch/join/place.h"

namespace retort::launch {

struct JoinCommand {
  std::string recipe;  // "": the run's own, of a process that is not student/0
  std::vector<std::string> overrides;
  JoinArguments place;
  std::string output;  // the run's folder as this host sees it; "": output_dir of the recipe
  bool resume = false, overwrite = false;
  std::string encryption;  // of a process without a recipe: as rpc.encryption; "": auto
};

// student/0 keeps the run, unless a launcher does: its folder, its store, progress and supervision,
// and a rank of its own as a child; it ends with the exit code of the run. Every other process
// meets it (launch/join), is told what it is, and becomes that rank by exec: this returns only for
// student/0.
//
// Errors: those of find_place() and MeetingGuest; kMismatch for another recipe or mode, with both.
int run_join(const JoinCommand& command);

}  // namespace retort::launch
