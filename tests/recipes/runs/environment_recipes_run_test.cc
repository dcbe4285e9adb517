// Whole runs of rejection_sampling and on_policy_distill whose samples are episodes with an
// environment.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tests/recipes/run_support/disturbed_run.h"
#include "tests/recipes/run_support/environment_support.h"

namespace retort::test {
namespace {

constexpr double kTolerance = 1e-5;

class EnvironmentRecipes : public testing::Test {
 protected:
  EnvironmentRecipes() { write_environment(folder_.path()); }

  // Four prompts of four episodes in each round of two steps, of which two are kept.
  static OnPolicyRecipe rejection(int64_t steps) {
    return {.recipe = "rejection_sampling",
            .rows = 4,
            .steps = steps,
            .block = {{"rounds", std::to_string(steps / 2)},
                      {"prompts_per_round", "4"},
                      {"top_n", "2"}},
            .data_extra = "  packing: false\n"};
  }
  // Four episodes a step.
  static OnPolicyRecipe taught(int64_t steps) {
    return {.recipe = "on_policy_distill",
            .teacher = "teacher",
            .rows = 4,
            .steps = steps,
            .block = {{"teachers", "[{role: teacher}]"}, {"loss_type", "reverse_kl"}},
            .generation = {}};
  }
  static OnPolicyRecipe taught_by_samples(int64_t steps) {
    OnPolicyRecipe recipe = taught(steps);
    recipe.block["payload"] = "target_logps";
    recipe.block["use_policy_gradient"] = "true";
    return recipe;
  }

  std::vector<std::string> launch(const fs::path& folder, const OnPolicyRecipe& recipe,
                                  const std::vector<std::string>& settings = {}) const {
    return launch_with_environment(folder_.path(), folder, recipe, settings);
  }
  // The run's folder.
  fs::path run(const std::string& name, const OnPolicyRecipe& recipe,
               const std::vector<std::string>& settings = {}) const {
    const auto result = retort(launch(folder_ / name, recipe, settings), std::chrono::seconds(120));
    EXPECT_EQ(result.exit_code, 0) << name << "\n" << result.output;
    return folder_ / name / "run";
  }
  std::string held_out() const {
    return "data.eval=[{path: " + (folder_ / "prompts.jsonl").string() + "}]";
  }

  // The recipe as two ranks, each with half of the rows, and several of all others.
  static OnPolicyRecipe split(OnPolicyRecipe recipe) {
    recipe.dp = 2;
    recipe.rows /= 2;
    recipe.generators = 2;
    return recipe;
  }
  static inline const std::vector<std::string> kTwoEnvironments{"roles.tools.world.dp=2"};

  // The recipe of `steps` steps once undisturbed, and once with losses.
  std::pair<fs::path, fs::path> with_losses(const OnPolicyRecipe& recipe,
                                            const std::vector<RoleSignal>& signals) {
    const fs::path undisturbed = run("undisturbed", recipe);
    const DisturbedRun disturbed =
        disturb(folder_ / "disturbed", static_cast<size_t>(recipe.steps), signals,
                [&](const fs::path& folder) { return launch(folder, recipe); });
    EXPECT_EQ(disturbed.result.exit_code, 0) << disturbed.result.output;
    return {undisturbed, disturbed.folder / "run"};
  }

  TemporaryFolder folder_;
};

// The tokens of the model in a sample.
size_t num_own(const nlohmann::json& sample) {
  const std::vector<bool> own = own_tokens(sample);
  return static_cast<size_t>(std::count(own.begin(), own.end(), true));
}

std::vector<nlohmann::json> kept_rows(const fs::path& run, int64_t rounds) {
  std::vector<nlohmann::json> rows;
  for (int64_t round = 0; round < rounds; ++round)
    for (nlohmann::json& row : read_lines(run / ("kept/round-" + std::to_string(round) + ".jsonl")))
      rows.push_back(std::move(row));
  return rows;
}

TEST_F(EnvironmentRecipes, RejectionSamplingKeepsTheBestWholeEpisodes) {
  const fs::path path = run("a", rejection(4), {held_out(), "train.eval_steps=2"});
  const auto samples = read_samples(path);
  ASSERT_EQ(samples.size(), 2u * 16u);
  std::map<std::pair<int64_t, std::string>, double> best;  // by step and prompt
  for (const auto& [key, sample] : samples) {
    double& reward = best[{key.first, sample.at("prompt").get<std::string>()}];
    reward = std::max(reward, sample.at("reward").get<double>());
  }
  ASSERT_EQ(best.size(), 8u);

  size_t answered = 0;
  std::map<std::pair<int64_t, std::string>, double> kept;
  const auto rows = kept_rows(path, 2);
  for (const auto& row : rows) {
    const int64_t step = 1 + 2 * row.at("round").get<int64_t>();
    const auto& sample = samples.at({step, row.at("sample_id").get<int64_t>()});
    auto ids = sample.at("prompt_ids").get<std::vector<int32_t>>();
    std::vector<int32_t> labels(ids.size(), -100);
    const auto said = sample.at("token_ids").get<std::vector<int32_t>>();
    const std::vector<bool> own = own_tokens(row);
    ASSERT_EQ(own.size(), said.size());
    for (size_t i = 0; i < said.size(); ++i)
      labels.push_back(own[i] ? said[i] : -100);
    ids.insert(ids.end(), said.begin(), said.end());
    EXPECT_EQ(row.at("input_ids").get<std::vector<int32_t>>(), ids);
    EXPECT_EQ(row.at("labels").get<std::vector<int32_t>>(), labels);
    for (const char* key : {"spans", "episode", "reward", "prompt", "completion"})
      EXPECT_EQ(row.at(key), sample.at(key)) << key;
    answered += row.at("spans").size() > 1;
    double& reward = kept[{step, row.at("prompt").get<std::string>()}];
    reward = std::max(reward, row.at("reward").get<double>());
  }
  EXPECT_GT(answered, 0u) << "or the test shows nothing";
  EXPECT_EQ(kept, best) << "rewards choose";

  // Turns have at most 5 tokens of the model's; what the environment says between would be more.
  for (const double length : column(path, "eval_completions/mean_length"))
    EXPECT_LE(length, 3 * 5);
  EXPECT_EQ(column(path, "eval_reward").size(), 2u);
  EXPECT_EQ(column(path, "episodes/mean_turns").size(), 4u);

  // The same rows, whoever draws and trains.
  const fs::path other = run("b", split(rejection(4)), kTwoEnvironments);
  EXPECT_EQ(kept_rows(other, 2), rows);
  for (const char* key : {"loss", "grad_norm", "reward_kept", "episodes/mean_turns",
                          "episodes/mean_environment_tokens", "environment/turns"})
    expect_same_column(other, path, key, kTolerance);
}

TEST_F(EnvironmentRecipes, RejectionSamplingIsTheSameWhoeverIsLost) {
  const auto [undisturbed, disturbed] =
      with_losses(rejection(24), {{.rows = 2, .role = "tools"}, {.rows = 8, .role = "generator"}});
  EXPECT_EQ(timeless_metrics(disturbed), timeless_metrics(undisturbed));
  EXPECT_EQ(kept_rows(disturbed, 12), kept_rows(undisturbed, 12));
}

TEST_F(EnvironmentRecipes, ATeacherCorrectsTheTurnsOfAnEpisode) {
  const std::vector<std::string> evaluated{held_out(), "train.eval_steps=2"};
  const fs::path path = run("a", taught(4), evaluated);
  const auto samples = read_samples(path);
  ASSERT_EQ(samples.size(), 4u + 4u + 2u + 4u) << "ten prompts are an epoch";

  // Lengths are those of the model's tokens, and what is read is all of them.
  std::vector<double> own(4), episodes(4), read(4);
  size_t answered = 0;
  for (const auto& [key, sample] : samples) {
    const auto step = static_cast<size_t>(key.first - 1);
    own.at(step) += static_cast<double>(num_own(sample));
    episodes.at(step) += 1;
    read.at(step) +=
        static_cast<double>(sample.at("prompt_ids").size() + sample.at("token_ids").size());
    answered += sample.at("spans").size() > 1;
  }
  EXPECT_GT(answered, 0u) << "or the test shows nothing";
  const auto lengths = column(path, "completions/mean_length");
  const auto tokens = column(path, "num_tokens");
  ASSERT_EQ(lengths.size(), 4u);
  for (size_t step = 0; step < 4; ++step) {
    EXPECT_NEAR(lengths[step], own[step] / episodes[step], 1e-9) << step;
    const double before = step == 0 ? 0 : tokens.at(step - 1);
    EXPECT_EQ(tokens.at(step) - before, read[step]) << step;
  }
  for (const double loss : column(path, "kd_loss"))
    EXPECT_GT(loss, 0);
  for (const char* key : {"eval_kd_loss", "eval_reward", "eval_completions/mean_length"})
    EXPECT_EQ(column(path, key).size(), 2u) << key;
  EXPECT_TRUE(column(path, "eval_loss").empty()) << "rows have no answers";

  const fs::path other =
      run("b", split(taught(4)), {held_out(), "train.eval_steps=2", "roles.tools.world.dp=2"});
  expect_same_samples(other, path);
  for (const char* key : {"loss", "kd_loss", "grad_norm", "completions/mean_length", "reward",
                          "episodes/mean_turns", "environment/turns"}) {
    const auto got = column(other, key), expected = column(path, key);
    ASSERT_EQ(got.size(), expected.size()) << key;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], kTolerance * std::max(1.0, std::abs(expected[i]))) << key;
  }
}

TEST_F(EnvironmentRecipes, DistillationIsTheSameWhoeverIsLost) {
  const auto [undisturbed, disturbed] =
      with_losses(taught_by_samples(30), {{.rows = 3, .role = "tools"},
                                          {.rows = 9, .role = "generator"},
                                          {.rows = 15, .role = "teacher"}});
  EXPECT_EQ(timeless_metrics(disturbed), timeless_metrics(undisturbed));
  EXPECT_EQ(read_samples(disturbed), read_samples(undisturbed));
  EXPECT_EQ(column(undisturbed, "reverse_kl").size(), 30u);
}

// Rows that begin episodes have no answers, which none of these commands may ask for.
TEST_F(EnvironmentRecipes, CommandsReadRowsWithoutAnswers) {
  for (const OnPolicyRecipe& recipe : {taught(4), taught_by_samples(4), rejection(4)})
    for (const char* command : {"check", "audit", "plan"}) {
      std::vector<std::string> arguments = launch(folder_ / recipe.recipe, recipe);
      arguments.front() = command;
      const auto result = retort(arguments);
      EXPECT_EQ(result.exit_code, 0) << result.output;
      if (std::string(command) != "check") continue;
      EXPECT_NE(result.output.find("before the next one a tool that answers 5 is ids"),
                std::string::npos)
          << result.output;
    }
}

// Stopped after two of its steps and resumed, in the middle of an epoch.
TEST_F(EnvironmentRecipes, DistillationGoesOnWhereItStopped) {
  OnPolicyRecipe recipe = taught(5);
  recipe.save_steps = 2;
  const fs::path whole = run("whole", recipe);
  const fs::path stopped = run("stopped", recipe, {"train.exit_interval=2"});
  ASSERT_EQ(metrics_rows(stopped), 2u);
  run("stopped", recipe, {"--resume"});
  EXPECT_EQ(timeless_metrics(stopped), timeless_metrics(whole));
  EXPECT_EQ(read_samples(stopped), read_samples(whole));
  EXPECT_TRUE(read_file(stopped / "final/model.safetensors") ==
              read_file(whole / "final/model.safetensors"));
}

}  // namespace
}  // namespace retort::test
