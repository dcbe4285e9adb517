#include "tests/recipes/bfloat16_support.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/checkpoint.h"
#include "models/safetensors.h"

namespace retort::test {
namespace {

// bfloat16 keeps 8 bits: each rounding is off by at most 2^-9 = 0.2 % of a value, and a gradient
// has passed some tens of them. They are independent of one another, so that they add up across
// the direction of the gradient (2 to 6 % of its length here) much more than along it: by at most
// 1 % in matrices, 2.5 % in a norm of 8 numbers.
//   kScale, of matrices  a gradient that is 5 % too long is at least 4 % off; the norms' own
//                        factors are held by tests/models/bfloat16_test.cc, over more tokens
//   kRelative            what else goes wrong: one of two heads that is missing is off by 50 %
constexpr double kScale = 0.02;
constexpr double kVectorScale = 0.045;
constexpr double kRelative = 0.09;

}  // namespace

fs::path exact_model(const TemporaryFolder& folder, const std::string& name) {
  const fs::path path = folder / (name + "-exact");
  fs::create_directories(path);
  const models::Decoder rounded = models::load_decoder(goldens() / name, at::kBFloat16);
  models::save_decoder(rounded, at::kFloat, goldens() / name, path);
  return path;
}

std::vector<std::string> in_bfloat16(const std::vector<std::string>& roles) {
  std::vector<std::string> settings;
  for (const std::string& role : roles)
    settings.push_back("roles." + role + ".dtype=bfloat16");
  return settings;
}

fs::path launch_unclipped(const fs::path& recipe, std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"launch", recipe.string(), "train.max_grad_norm=0"});
  const CommandResult result = retort(std::move(settings), std::chrono::seconds(300));
  EXPECT_EQ(result.exit_code, 0) << recipe << "\n" << result.output;
  return recipe.parent_path() / "run";
}

std::vector<GradientError> gradient_errors(const fs::path& run, const fs::path& wanted) {
  const fs::path state = "final/state/optimizer.safetensors";
  const models::SafetensorsReader got(run / state), want(wanted / state);
  std::vector<GradientError> errors;
  for (const std::string& name : want.names()) {
    if (!name.ends_with(".exp_avg")) continue;
    const at::Tensor x = got.get(name).to(at::kDouble), g = want.get(name).to(at::kDouble);
    const double squares = g.square().sum().item<double>();
    errors.push_back({.name = name.substr(0, name.rfind('.')),
                      .is_matrix = g.dim() > 1,
                      .relative = std::sqrt((x - g).square().sum().item<double>() / squares),
                      .scale = (x * g).sum().item<double>() / squares - 1});
  }
  return errors;
}

void expect_gradients_follow(const fs::path& run, const fs::path& wanted) {
  const std::vector<GradientError> errors = gradient_errors(run, wanted);
  ASSERT_FALSE(errors.empty());
  double relative = 0, scale = 0;
  for (const GradientError& error : errors) {
    EXPECT_LT(error.relative, kRelative) << error.name;
    EXPECT_LT(std::abs(error.scale), error.is_matrix ? kScale : kVectorScale) << error.name;
    relative = std::max(relative, error.relative);
    if (error.is_matrix) scale = std::max(scale, std::abs(error.scale));
  }

  // The same bits would mean that nothing was computed in bfloat16.
  EXPECT_GT(relative, 1e-4);
  const std::string name = run.parent_path().filename();
  testing::Test::RecordProperty(name + "_relative", std::to_string(relative));
  testing::Test::RecordProperty(name + "_scale", std::to_string(scale));
}

}  // namespace retort::test
