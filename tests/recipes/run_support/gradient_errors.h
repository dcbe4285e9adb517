// The gradients of a run's first step, and how they differ from wanted ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {

// By the parameters' names, in float64.
using Gradients = std::map<std::string, at::Tensor>;

// Of a run of one step without clipping: the first moment of Adam is then a tenth of the gradient.
Gradients first_gradients(const fs::path& run);

// How the gradient x of a parameter differs from the wanted one, g.
struct GradientError {
  std::string name;
  bool is_matrix = true;
  double relative = 0;  // |x - g| / |g|
  double scale = 0;     // <x, g> / <g, g> - 1
};
// Of every parameter. A failure of the test if the parameters are not the wanted ones.
std::vector<GradientError> gradient_errors(const Gradients& got, const Gradients& want);

struct GradientBounds {
  double scale = 0;         // of matrices
  double vector_scale = 0;  // of norms and biases
  double relative = 0;
};
// The parameters whose gradients are further off than the bounds.
std::vector<std::string> outside(const std::vector<GradientError>& errors,
                                 const GradientBounds& bounds);

// Every gradient is within the bounds, and not all are the wanted ones to the bit. The largest
// errors become properties of the test that begin with `label`.
void expect_gradients_within(const Gradients& got, const Gradients& want,
                             const GradientBounds& bounds, const std::string& label);

}  // namespace retort::test
