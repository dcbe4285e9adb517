// Runs with `dtype: bfloat16` or float16 beside the same runs in float32.
#pragma once

#include <string>
#include <vector>

#include "tests/recipes/run_support.h"

namespace retort::test {

// A copy of the golden model whose weights bfloat16 holds exactly (and float16, but for the
// smallest of them), so that runs of all dtypes start from the same numbers.
fs::path exact_model(const TemporaryFolder& folder, const std::string& name);

// A random model of `layers` layers, else as the golden one, whose weights bfloat16 holds exactly.
fs::path exact_deep_model(const TemporaryFolder& folder, const std::string& name, int64_t layers);

// The same recipe in bfloat16, all its roles, as settings of the command line.
std::vector<std::string> in_bfloat16(const std::vector<std::string>& roles);
// In float16, with a loss scale that no gradient of the golden models overflows with.
std::vector<std::string> in_float16(const std::vector<std::string>& roles);

// Launches a recipe file with these settings, no clipping among them, and returns its run folder. A
// run that fails is a failure of the test.
fs::path launch_unclipped(const fs::path& recipe, std::vector<std::string> settings);

// How the gradient x of a parameter differs from the wanted one, g.
struct GradientError {
  std::string name;
  bool is_matrix = true;
  double relative = 0;  // |x - g| / |g|
  double scale = 0;     // <x, g> / <g, g> - 1
};
// Of the first step of two runs of one step each, parameter by parameter: the first moment of Adam
// is then a tenth of the gradient.
std::vector<GradientError> gradient_errors(const fs::path& run, const fs::path& wanted);

// Every parameter's gradient within what bfloat16 explains, or float16; the bounds stand in the
// .cc.
void expect_gradients_follow(const fs::path& run, const fs::path& wanted);
void expect_float16_gradients_follow(const fs::path& run, const fs::path& wanted);

// The first step of two runs: its loss within 1 %, the same tokens.
void expect_same_start(const fs::path& run, const fs::path& wanted);

// How a step is split over processes and micro-batches.
struct Split {
  std::string name;
  std::vector<std::string> world;  // of the student
  int64_t dp = 1, accumulation = 1;
};
// What stands on the command line for a split of `rows` a step.
std::vector<std::string> settings(const Split& split, int64_t rows);
std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b);

}  // namespace retort::test
