#include "tests/recipes/run_support/gradient_errors.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/safetensors/safetensors.h"

namespace retort::test {
namespace {

bool is_outside(const GradientError& error, const GradientBounds& bounds) {
  const double scale = error.is_matrix ? bounds.scale : bounds.vector_scale;
  // A gradient that is not a number is not within anything.
  return !(error.relative < bounds.relative && std::abs(error.scale) < scale);
}

}  // namespace

Gradients first_gradients(const fs::path& run) {
  const models::SafetensorsReader state(run / "final/state/optimizer.safetensors");
  Gradients gradients;
  for (const std::string& name : state.names())
    if (name.ends_with(".exp_avg"))
      gradients[name.substr(0, name.rfind('.'))] = state.get(name).to(at::kDouble) * 10;
  return gradients;
}

std::vector<GradientError> gradient_errors(const Gradients& got, const Gradients& want) {
  EXPECT_EQ(got.size(), want.size());
  std::vector<GradientError> errors;
  for (const auto& [name, g] : want) {
    const auto found = got.find(name);
    if (found == got.end()) {
      ADD_FAILURE() << "no gradient of " << name;
      continue;
    }
    const at::Tensor& x = found->second;
    const double squares = g.square().sum().item<double>();
    errors.push_back({.name = name,
                      .is_matrix = g.dim() > 1,
                      .relative = std::sqrt((x - g).square().sum().item<double>() / squares),
                      .scale = (x * g).sum().item<double>() / squares - 1});
  }
  return errors;
}

std::vector<std::string> outside(const std::vector<GradientError>& errors,
                                 const GradientBounds& bounds) {
  std::vector<std::string> names;
  for (const GradientError& error : errors)
    if (is_outside(error, bounds)) names.push_back(error.name);
  return names;
}

void expect_gradients_within(const Gradients& got, const Gradients& want,
                             const GradientBounds& bounds, const std::string& label) {
  const std::vector<GradientError> errors = gradient_errors(got, want);
  ASSERT_FALSE(errors.empty());
  double relative = 0, scale = 0, vector_scale = 0;
  for (const GradientError& error : errors) {
    EXPECT_FALSE(is_outside(error, bounds))
        << error.name << " is " << error.relative << " off, " << error.scale << " too long";
    relative = std::max(relative, error.relative);
    double& largest = error.is_matrix ? scale : vector_scale;
    largest = std::max(largest, std::abs(error.scale));
  }

  // The same bits would mean that nothing was computed in fewer.
  EXPECT_GT(relative, 1e-3 * bounds.relative);
  testing::Test::RecordProperty(label + "_relative", std::to_string(relative));
  testing::Test::RecordProperty(label + "_scale", std::to_string(scale));
  testing::Test::RecordProperty(label + "_vector_scale", std::to_string(vector_scale));
}

}  // namespace retort::test
