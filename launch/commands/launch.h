// retort launch: from a recipe file to the exit code of its run.
#pragma once

#include <string>
#include <vector>

namespace retort::launch {

struct LaunchCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  bool resume = false, overwrite = false;
};

// Validates before anything starts, prepares the run folder, owns the rendezvous store, starts
// every role's processes, shows progress, and supervises until all are gone.
int run_launch(const LaunchCommand& command);

}  // namespace retort::launch
