// Runs with `dtype: bfloat16` or float16 beside the same runs in float32.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {

// A copy of the golden model whose weights bfloat16 holds exactly (and float16, but for the
// smallest of them), so that runs of all dtypes start from the same numbers.
fs::path exact_model(const TemporaryFolder& folder, const std::string& name);

// A random model of `layers` layers, else as the golden one, whose weights bfloat16 holds exactly.
fs::path exact_deep_model(const TemporaryFolder& folder, const std::string& name, int64_t layers);

// The same recipe in bfloat16, all its roles, as settings of the command line.
std::vector<std::string> in_bfloat16(const std::vector<std::string>& roles);

// Launches a recipe file with these settings, no clipping among them, and returns its run folder. A
// run that fails is a failure of the test.
fs::path launch_unclipped(const fs::path& recipe, std::vector<std::string> settings);

// How a step is split over processes and micro-batches.
struct Split {
  std::string name;
  std::vector<std::string> world;  // of the student
  int64_t dp = 1, accumulation = 1;
  std::vector<std::string> more = {};  // other settings
};
inline const Split kWhole{"one", {}};
// What stands on the command line for a split of `rows` a step.
std::vector<std::string> settings(const Split& split, int64_t rows);
std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b);

// The recipe file of the run with that name.
using WriteRun = std::function<fs::path(const std::string& name)>;
// The first step of the run "float32", by one process, and as each of `splits` says with `roles` in
// fewer bits, in runs of their names: the same tokens, a loss within 1 %, and every parameter's
// gradient within what the roundings explain; the bounds stand in the .cc. `more`: settings of all
// these runs.
void expect_bfloat16_follows(const WriteRun& write, int64_t rows,
                             const std::vector<std::string>& roles,
                             const std::vector<Split>& splits,
                             const std::vector<std::string>& more = {});
// The same with a loss scale that no gradient of the golden models overflows with.
void expect_float16_follows(const WriteRun& write, int64_t rows,
                            const std::vector<std::string>& roles, const std::vector<Split>& splits,
                            const std::vector<std::string>& more = {});

}  // namespace retort::test
