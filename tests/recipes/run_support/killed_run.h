// Whole runs that are killed and resumed: the numbers and files of a run that nobody disturbed, bit
// for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {

// Arguments of `retort` that launch the run in folder/run: the same run in each folder. What all of
// them read lies in `data`.
using LaunchIn =
    std::function<std::vector<std::string>(const TemporaryFolder& data, const fs::path& folder)>;

// A run of `steps` steps that saves checkpoints on its way.
struct KilledRun {
  std::string name;
  int64_t steps = 20;
  LaunchIn launch;
  int64_t rank = 0;  // of the student, which is killed
};

inline std::ostream& operator<<(std::ostream& out, const KilledRun& run) { return out << run.name; }

// Once undisturbed, then RETORT_TRIALS times (default 1) with two kills at random moments, of the
// student's rank and of the launcher by turns, each resumed: the same metrics, tensors, samples and
// kept rows.
void expect_same_after_kills(const KilledRun& run);

}  // namespace retort::test
