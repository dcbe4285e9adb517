#include "tests/recipes/run_support/golden_support.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/file.h"
#include "base/sizes.h"
#include "models/safetensors/safetensors.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr double kRelative = 1e-5;
constexpr double kLearningRate = 1e-3;

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

}  // namespace

nlohmann::json golden_cases(const std::string& file) {
  return nlohmann::json::parse(read_file(goldens() / (file + ".json")));
}

fs::path write_recipe_text(const fs::path& folder, std::string recipe) {
  fs::create_directories(folder);
  replace_all(recipe, "$GOLDENS", goldens().string());
  replace_all(recipe, "$RUN", (folder / "run").string());
  const fs::path path = folder / "recipe.yaml";
  std::ofstream(path) << recipe;
  return path;
}

fs::path run_recipe_text(const fs::path& folder, std::string recipe,
                         const std::vector<std::string>& settings) {
  std::vector<std::string> args{"launch", write_recipe_text(folder, std::move(recipe)).string()};
  args.insert(args.end(), settings.begin(), settings.end());
  const CommandResult result = retort(args);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return folder / "run";
}

void expect_close(const std::vector<double>& got, const nlohmann::json& want,
                  const std::string& what, double absolute) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = want[i].get<double>();
    EXPECT_LE(std::abs(got[i] - value), std::max(kRelative * std::abs(value), absolute))
        << what << " of step " << i + 1 << ": " << got[i] << " against " << value;
  }
}

void expect_columns(const fs::path& run, const nlohmann::json& golden,
                    const std::vector<std::string>& keys, double absolute) {
  for (const std::string& key : keys)
    expect_close(column(run, key), golden.at(key), key, absolute);
}

void expect_recorded_samples(const fs::path& run, const nlohmann::json& golden) {
  const auto drawn = read_samples(run);
  for (const auto& [step, samples] : golden.at("samples").items()) {
    const int64_t number = std::stoll(step);
    auto next = drawn.lower_bound({number, 0});
    const auto end = drawn.lower_bound({number + 1, 0});
    ASSERT_EQ(std::distance(next, end), to_int64(samples.size())) << "step " << step;

    // In the order of their ids, in which one rank writes them.
    for (const nlohmann::json& want : samples) {
      const auto& [key, got] = *next++;
      const std::string what = "step " + step + ", sample " + std::to_string(key.second);
      ASSERT_EQ(got.at("prompt_ids"), want[0]) << what;
      ASSERT_EQ(got.at("token_ids"), want[1]) << what;
      ASSERT_EQ(got.at("reward"), want[2]) << what;
      const auto logps = got.at("sampling_logps").get<std::vector<double>>();
      ASSERT_NEAR(std::accumulate(logps.begin(), logps.end(), 0.0), want[3].get<double>(), 5e-5)
          << what;
    }
  }
}

ParameterError tensor_error(const fs::path& got_in, const fs::path& start_in,
                            const std::string& changes, const std::string& name) {
  const models::SafetensorsReader got(got_in), start(start_in),
      all(goldens() / (changes + ".safetensors"));
  EXPECT_EQ(got.names(), start.names());
  const at::Tensor change = all.get(name).to(at::kDouble);
  double difference = 0, norm = 0, largest = 0;
  int64_t begin = 0;
  for (const std::string& parameter : start.names()) {
    const at::Tensor before = start.get(parameter).to(at::kDouble).flatten();
    const at::Tensor want = before + change.narrow(0, begin, before.numel());
    const at::Tensor error = got.get(parameter).to(at::kDouble).flatten() - want;
    difference += error.square().sum().item<double>();
    norm += want.square().sum().item<double>();
    largest = std::max(largest, error.abs().max().item<double>());
    begin += before.numel();
  }
  EXPECT_EQ(begin, change.numel()) << name;
  return {std::sqrt(difference / norm), largest};
}

ParameterError parameter_error(const fs::path& run, const std::string& model,
                               const std::string& changes, const std::string& name) {
  return tensor_error(run / "final", goldens() / model, changes, name);
}

void expect_same_parameters(const fs::path& run, const std::string& model,
                            const std::string& changes, const std::string& name) {
  const ParameterError error = parameter_error(run, model, changes, name);
  EXPECT_LE(error.relative, kRelative);
  EXPECT_LE(error.largest, 0.05 * kLearningRate);
  testing::Test::RecordProperty("parameter_error", std::to_string(error.relative));
}

}  // namespace retort::test
