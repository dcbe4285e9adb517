// Whole grpo and on_policy_distill runs against recorded samples that a single-process loop around
// TRL's own code replayed: the tokens that are drawn, the generator's log-probabilities of them,
// and the metrics and parameters of the training on them.
#include <gtest/gtest.h>

#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

// TRL's is over all samples, ours over those that are computed.
void expect_entropy(const fs::path& run, const nlohmann::json& golden) {
  const std::vector<nlohmann::json> rows = read_metrics(run);
  ASSERT_EQ(rows.size(), golden.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const nlohmann::json& entropy = rows[i].at("entropy");
    const double left_out = rows[i].value("frac_without_signal", 0.0);
    EXPECT_EQ(entropy.is_null(), left_out == 1) << "step " << i + 1;
    if (left_out == 0)
      expect_close({entropy.get<double>()}, nlohmann::json::array({golden[i]}), "entropy", 1e-6);
  }
}

class PolicyRun : public testing::TestWithParam<std::string> {};

TEST_P(PolicyRun, MatchesTrl) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("policy").at(GetParam());
  const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"));
  ASSERT_FALSE(HasFailure());
  expect_recorded_samples(run, golden);
  ASSERT_FALSE(HasFailure()) << "other samples: the rest cannot agree";
  std::vector<std::string> keys;
  for (const auto& [key, values] : golden.items())
    if (key != "recipe" && key != "samples" && key != "entropy") keys.push_back(key);
  ASSERT_GE(keys.size(), 2u);
  expect_columns(run, golden, keys, 1e-6);
  if (golden.contains("entropy")) expect_entropy(run, golden.at("entropy"));
  expect_same_parameters(run, "qwen3", "policy_changes", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, PolicyRun,
                         testing::Values("dapo", "iterations", "reference", "batch_scale", "rloo",
                                         "reinforce", "equal_rewards", "sequence",
                                         "token_correction", "sequence_correction", "stale",
                                         "stale_sequence", "stale_correction", "mini_batches",
                                         "two_sided", "cispo", "off_policy_mask", "truncated",
                                         "kl_in_reward", "on_policy_hidden", "on_policy_gradient"),
                         [](const auto& info) { return info.param; });

struct Change {
  const char *name, *from, *to;
  size_t step;  // the first whose loss differs; the samples are still those of the golden
};
class PolicyRunDetects : public testing::TestWithParam<Change> {};

// The comparison can fail: a recipe that differs in one value is far outside the tolerance.
TEST_P(PolicyRunDetects, AnotherRecipe) {
  const Change& change = GetParam();
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("policy").at(change.name);
  std::string recipe = golden.at("recipe");
  const size_t at = recipe.find(change.from);
  ASSERT_NE(at, std::string::npos);
  recipe.replace(at, std::string(change.from).size(), change.to);
  const fs::path run = run_recipe_text(folder.path(), recipe);
  ASSERT_FALSE(HasFailure());
  const double got = column(run, "loss").at(change.step - 1),
               want = golden.at("loss")[change.step - 1];
  EXPECT_GT(std::abs(got - want), 1e-4 * std::abs(want));
}

INSTANTIATE_TEST_SUITE_P(
    Changes, PolicyRunDetects,
    testing::Values(Change{"reference", "\"beta\": 0.04", "\"beta\": 0.041", 1},
                    Change{"iterations", "\"epsilon\": 0.05", "\"epsilon\": 0.06", 2},
                    Change{"mini_batches", "\"epsilon\": 0.05", "\"epsilon\": 0.06", 2},
                    Change{"two_sided", "\"delta\": 1.02", "\"delta\": 1.5", 2},
                    Change{"off_policy_mask", "\"off_policy_mask_threshold\": 0.001",
                           "\"off_policy_mask_threshold\": 10", 2},
                    Change{"cispo", "\"epsilon_high\": 1.02", "\"epsilon_high\": 1.5", 2},
                    Change{"truncated", "\"overlong_penalty_tokens\": 4",
                           "\"overlong_penalty_tokens\": 3", 1},
                    Change{"kl_in_reward", "\"beta\": 0.1", "\"beta\": 0.11", 1},
                    Change{"token_correction", "\"importance_sampling_cap\": 0.91",
                           "\"importance_sampling_cap\": 0.9", 1},
                    Change{"sequence_correction", "sequence_mask", "sequence_truncate", 1},
                    Change{"on_policy_hidden", "reverse_kl", "forward_kl", 1}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace retort::test
