// retort status: what a run is doing, from the file that its launcher keeps.
#pragma once

#include <string>

namespace retort::launch {

struct StatusCommand {
  std::string run;  // a run's folder
  bool watch = false;
};
// Shows what a run is doing, from its status.json; with `watch` again each second until it has
// ended. The run's exit code once it has one; before that 0, or 1 if its launcher is lost.
// kInvalidArgument if `run` holds no run.
int run_status(const StatusCommand& command);

}  // namespace retort::launch
