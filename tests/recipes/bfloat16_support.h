// Runs with `dtype: bfloat16` beside the same runs in float32.
#pragma once

#include <string>
#include <vector>

#include "tests/recipes/run_support.h"

namespace retort::test {

// A copy of the golden model whose weights bfloat16 holds exactly, so that runs of both dtypes
// start from the same numbers.
fs::path exact_model(const TemporaryFolder& folder, const std::string& name);

// The same recipe in bfloat16, all its roles, as settings of the command line.
std::vector<std::string> in_bfloat16(const std::vector<std::string>& roles);

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

// Every parameter's gradient within what bfloat16 explains; the bounds stand in the .cc.
void expect_gradients_follow(const fs::path& run, const fs::path& wanted);

}  // namespace retort::test
