// Whole runs whose processes get signals in the middle.
#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {

// To a process of a role once the run's metrics have so many rows.
struct RoleSignal {
  size_t rows = 0;
  std::string role;
  int64_t rank = 0;
  int number = SIGKILL;
};

// Sends it to another process than `before`. The process; -1: the run was over first.
int signal_role(Command& run, const fs::path& folder, const RoleSignal& signal, int before = -1);

struct DisturbedRun {
  fs::path folder;  // holds run/
  CommandResult result;
};

// A run of `steps` steps that got all the signals. Where it was over before, as the test was held
// up, another run is tried in a folder of its own, a few times. `launch`: the arguments of `retort`
// for a run in that folder.
DisturbedRun disturb(const fs::path& folder, size_t steps, const std::vector<RoleSignal>& signals,
                     const std::function<std::vector<std::string>(const fs::path&)>& launch);

}  // namespace retort::test
