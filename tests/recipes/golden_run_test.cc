// Whole runs of `retort launch` against a single-process PyTorch loop: losses, gradient norms and parameters of 5 AdamW steps.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "models/safetensors.h"
#include "tests/recipes/run_support.h"

namespace retort::test {
namespace {

constexpr double kLearningRate = 1e-3;

const nlohmann::json& expected() {
  static const auto* json = new nlohmann::json(nlohmann::json::parse(read_file(goldens() / "expected.json")));
  return *json;
}

void expect_close(const std::vector<double>& got, const nlohmann::json& want, const char* what, double tolerance) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = want[i].get<double>();
    EXPECT_LE(std::abs(got[i] - value), tolerance * std::abs(value))
        << what << " of step " << i + 1 << ": " << got[i] << " against " << value;
  }
}

// All parameters as one vector: relative 2-norm of the difference, and the largest single difference.
void expect_same_parameters(const fs::path& checkpoint, const fs::path& golden) {
  const models::SafetensorsReader got(checkpoint), want(golden);
  ASSERT_EQ(got.names(), want.names());
  double difference = 0, norm = 0, largest = 0;
  for (const auto& name : want.names()) {
    const at::Tensor a = got.get(name).to(at::kDouble), b = want.get(name).to(at::kDouble);
    difference += (a - b).square().sum().item<double>();
    norm += b.square().sum().item<double>();
    largest = std::max(largest, (a - b).abs().max().item<double>());
  }
  EXPECT_LE(std::sqrt(difference / norm), 1e-5);
  EXPECT_LE(largest, 0.05 * kLearningRate);
  testing::Test::RecordProperty("parameter_error", std::to_string(std::sqrt(difference / norm)));
}

class GoldenRun : public testing::TestWithParam<std::string> {};

TEST_P(GoldenRun, MatchesPyTorch) {
  const std::string name = GetParam();
  const auto& want = expected().at(name);
  TemporaryFolder folder;
  GoldenRecipe recipe;
  const bool distills = want.contains("distill");
  if (distills) {
    recipe.teacher = "teacher";
    for (const auto& [key, value] : want.at("distill").items())
      recipe.distill[key] = value.is_string() ? value.get<std::string>() : value.dump();
  } else {
    recipe.student = name.substr(std::string("sft_").size());
  }
  const auto result = retort({"launch", write_recipe(folder.path(), recipe).string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_close(column(folder / "run", "loss"), want.at("losses"), "loss", 1e-5);
  expect_close(column(folder / "run", "grad_norm"), want.at("grad_norms"), "grad_norm", 1e-5);
  if (distills) {
    expect_close(column(folder / "run", "kd_loss"), want.at("kd"), "kd_loss", 1e-5);
    expect_close(column(folder / "run", "ce_loss"), want.at("ce"), "ce_loss", 1e-5);
  }
  expect_same_parameters(folder / "run/final", goldens() / (name + ".safetensors"));
}

std::vector<std::string> names() {
  // The test binary lists its cases before ctest's environment is needed; the goldens are beside this file.
  return {"sft_llama",
          "sft_mistral",
          "sft_qwen2",
          "sft_qwen3",
          "forward_hidden",
          "forward_hidden_mix",
          "reverse_hidden",
          "jsd_full",
          "skewed_full",
          "tvd_hidden",
          "forward_topk_bucket",
          "jsd_topk_bucket",
          "reverse_topk_bucket",
          "skewed_reverse_hidden",
          "forward_topk_renormalize",
          "forward_topk_drop"};
}
INSTANTIATE_TEST_SUITE_P(Cases, GoldenRun, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

// The comparison can fail: another temperature is far outside the tolerance.
TEST(GoldenRunDetects, AnotherTemperature) {
  TemporaryFolder folder;
  GoldenRecipe recipe{.teacher = "teacher", .distill = {{"payload", "hidden_states"}, {"temperature", "1.001"}}};
  const auto result = retort({"launch", write_recipe(folder.path(), recipe).string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const double got = column(folder / "run", "loss").at(0), want = expected().at("forward_hidden").at("losses")[0].get<double>();
  EXPECT_GT(std::abs(got - want), 1e-4 * want);
}

}  // namespace
}  // namespace retort::test
