// The first step of runs in bfloat16 against the same step of transformers in bfloat16, whole and
// split over processes: the loss and the gradient of each parameter.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "models/safetensors/safetensors.h"
#include "tests/recipes/run_support/bfloat16_support.h"
#include "tests/recipes/run_support/golden_support.h"
#include "tests/recipes/run_support/gradient_errors.h"

namespace retort::test {
namespace {

constexpr int64_t kRows = 20;  // or pairs: all that there are, in one step

// Both sides round, each on its own way: a whole run is 2.5 % off transformers, and one whose
// layers are cut in two, so that halves are rounded before they are added, 3.9 %. Along the
// gradient this is 1.5 % in matrices and 1.8 % in norms.
//   scale     of all parameters. It is below 0.05 / 2.05, so that no gradient within it would still
//             be if it were 5 % longer or shorter.
//   relative  what else goes wrong; transformers itself is 4.5 % off its own float32
constexpr GradientBounds kBounds{.scale = 0.024, .vector_scale = 0.024, .relative = 0.055};
constexpr double kLoss = 0.01;

Gradients golden_gradients(const std::string& name) {
  const models::SafetensorsReader all(goldens() / "bfloat16_gradients.safetensors");
  Gradients gradients;
  for (const std::string& key : all.names())
    if (key.starts_with(name + "/"))
      gradients[key.substr(name.size() + 1)] = all.get(key).to(at::kDouble);
  return gradients;
}

// The run's folder; a run that fails is a failure of the test.
fs::path run_case(const fs::path& folder, const std::string& name, const Split& split,
                  const std::vector<std::string>& more = {}) {
  const nlohmann::json golden = golden_cases("bfloat16").at(name);
  return run_recipe_text(folder / split.name, golden.at("recipe"),
                         joined(settings(split, kRows), more));
}

// Each gradient in turn is made 5 % shorter and 5 % longer: the comparison sees it, and it alone.
void expect_five_percent_is_seen(Gradients got, const Gradients& want) {
  for (auto& [parameter, gradient] : got) {
    const at::Tensor kept = gradient;
    for (const double factor : {0.95, 1.05}) {
      gradient = kept * factor;
      EXPECT_EQ(outside(gradient_errors(got, want), kBounds), std::vector{parameter}) << factor;
    }
    gradient = kept;
  }
}

void expect_matches(const std::string& name, const std::vector<Split>& splits,
                    const std::vector<std::string>& more = {}) {
  const double loss = golden_cases("bfloat16").at(name).at("loss").get<double>();
  TemporaryFolder folder;
  for (const Split& split : splits) {
    SCOPED_TRACE(split.name);
    const fs::path run = run_case(folder.path(), name, split, more);
    if (testing::Test::HasFailure()) return;
    const std::vector<double> losses = column(run, "loss");
    ASSERT_EQ(losses.size(), 1u);
    EXPECT_NEAR(losses[0], loss, kLoss * loss);
    const Gradients got = first_gradients(run), want = golden_gradients(name);
    expect_gradients_within(got, want, kBounds, split.name);
    if (split.name == kWhole.name) expect_five_percent_is_seen(got, want);
  }
}

const Split kTp{"tp", {"tp=2"}};
const Split kTpSp{"tp-sp", {"tp=2", "sequence_parallel=true"}};

TEST(Bfloat16Transformers, SftMatches) {
  expect_matches(
      "sft", {kWhole, kTpSp, {"pp", {"pp=2"}, 1, 2}, {"zero", {"distributed_optimizer=true"}, 2}});
}

TEST(Bfloat16Transformers, DistillMatches) { expect_matches("distill", {kWhole, kTpSp}); }

TEST(Bfloat16Transformers, DistillFromHiddenStatesMatches) {
  expect_matches("distill", {kWhole, kTp}, {"distill.payload=hidden_states"});
}

TEST(Bfloat16Transformers, DpoMatches) {
  expect_matches("dpo", {kWhole, kTpSp, {"pp-zero", {"pp=2", "distributed_optimizer=true"}, 2, 2}});
}

}  // namespace
}  // namespace retort::test
