// Whole runs of rejection_sampling and on_policy_distill whose samples are episodes with an
// environment.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tests/recipes/run_support/disturbed_run.h"
#include "tests/recipes/run_support/environment_support.h"

namespace retort::test {
namespace {

// All kills come while a run has steps to go.
constexpr int64_t kRunSteps = 16;
// Of the run in another layout, whose weights are others in their last bits.
constexpr int64_t kFewSteps = 4;
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
            .save_steps = kRunSteps / 2,
            .block = {{"teachers", "[{role: teacher}]"}, {"loss_type", "reverse_kl"}},
            .generation = {}};
  }
  static OnPolicyRecipe taught_by_samples(int64_t steps) {
    OnPolicyRecipe recipe = taught(steps);
    recipe.block["payload"] = "target_logps";
    recipe.block["use_policy_gradient"] = "true";
    return recipe;
  }
  // The recipe as two ranks, each with half of the rows, and several of all others.
  static OnPolicyRecipe split(OnPolicyRecipe recipe) {
    recipe.dp = 2;
    recipe.rows /= 2;
    recipe.generators = 2;
    return recipe;
  }

  std::vector<std::string> launch(const fs::path& folder, const OnPolicyRecipe& recipe,
                                  const std::vector<std::string>& settings = {}) const {
    return launch_with_environment(folder_.path(), folder, recipe, settings);
  }
  // The run's folder.
  fs::path run(const std::string& name, const OnPolicyRecipe& recipe,
               const std::vector<std::string>& settings = {}, int exit_code = 0) const {
    const auto result = retort(launch(folder_ / name, recipe, settings), std::chrono::seconds(120));
    EXPECT_EQ(result.exit_code, exit_code) << name << "\n" << result.output;
    return folder_ / name / "run";
  }
  // The same with a loss of each of these roles, one after the other.
  fs::path run_with_losses(const OnPolicyRecipe& recipe, const std::vector<std::string>& settings,
                           const std::vector<std::string>& roles) const {
    std::vector<RoleSignal> signals;
    for (const std::string& role : roles)
      signals.push_back({.rows = 2 + 4 * signals.size(), .role = role});
    const DisturbedRun disturbed =
        disturb(folder_ / "disturbed", kRunSteps, signals,
                [&](const fs::path& folder) { return launch(folder, recipe, settings); });
    EXPECT_EQ(disturbed.result.exit_code, 0) << disturbed.result.output;
    return disturbed.folder / "run";
  }

  // Held-out rows, played at half of the steps and at the end.
  std::vector<std::string> evaluated() const {
    return {"data.eval=[{path: " + (folder_ / "prompts.jsonl").string() + "}]",
            "train.eval_steps=" + std::to_string(kRunSteps / 2)};
  }

  TemporaryFolder folder_;
};

size_t num_own_tokens(const nlohmann::json& sample) {
  const std::vector<bool> own = own_tokens(sample);
  return static_cast<size_t>(std::count(own.begin(), own.end(), true));
}

std::vector<nlohmann::json> kept_rows(const fs::path& run, int64_t rounds) {
  std::vector<nlohmann::json> rows;
  for (int64_t round = 0; round < rounds; ++round)
    for (nlohmann::json& row :
         read_lines(run / ("kept/round-" + std::to_string(round) + ".jsonl"))) {
      row.at("episode").erase("restarts");  // as read_samples leaves it out
      rows.push_back(std::move(row));
    }
  return rows;
}

// The first steps of a run are those of another one that has no more, to rounding.
void expect_same_beginning(const fs::path& run, const fs::path& shorter,
                           std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const auto got = column(shorter, key), expected = column(run, key);
    ASSERT_EQ(got.size(), static_cast<size_t>(kFewSteps)) << key;
    ASSERT_GT(expected.size(), got.size()) << key;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], kTolerance * std::max(1.0, std::abs(expected[i])))
          << key << " of step " << i + 1;
  }
}

// A row has the tokens of its sample, and as labels those of the model.
void expect_kept(const nlohmann::json& row, const nlohmann::json& sample) {
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
}

TEST_F(EnvironmentRecipes, RejectionSamplingKeepsTheBestWholeEpisodes) {
  const OnPolicyRecipe recipe = rejection(kRunSteps);
  const fs::path path = run("whole", recipe, evaluated());
  const auto samples = read_samples(path);
  ASSERT_EQ(samples.size(), static_cast<size_t>(kRunSteps / 2) * 16);

  // The best reward of each step and prompt, of what was drawn and of what was kept.
  std::map<std::pair<int64_t, std::string>, double> drawn, kept;
  const auto note = [](auto& best, int64_t step, const nlohmann::json& row) {
    double& reward = best[{step, row.at("prompt").get<std::string>()}];
    reward = std::max(reward, row.at("reward").get<double>());
  };
  for (const auto& [key, sample] : samples)
    note(drawn, key.first, sample);
  size_t answered = 0;  // episodes of several turns
  const auto rows = kept_rows(path, kRunSteps / 2);
  for (const auto& row : rows) {
    const int64_t step = 1 + 2 * row.at("round").get<int64_t>();
    expect_kept(row, samples.at({step, row.at("sample_id").get<int64_t>()}));
    note(kept, step, row);
    answered += row.at("spans").size() > 1;
  }
  EXPECT_EQ(kept, drawn) << "rewards choose";
  EXPECT_GT(answered, 0u) << "or the test shows nothing";

  // Three turns have at most 5 tokens of the model's each; what stands between them is no length.
  const auto lengths = column(path, "eval_completions/mean_length");
  ASSERT_EQ(lengths.size(), 2u);
  EXPECT_LE(std::max(lengths[0], lengths[1]), 3 * 5);
  EXPECT_EQ(column(path, "eval_reward").size(), 2u);

  // The same rows whoever draws and trains, and whoever is lost: the environment is a function of
  // its seed, so that what is begun anew is what was lost.
  const fs::path other = run("split", split(rejection(kFewSteps)), {"roles.tools.world.dp=2"});
  const auto few = kept_rows(other, kFewSteps / 2);
  ASSERT_EQ(few.size(), static_cast<size_t>(kFewSteps / 2) * 8);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), rows.begin()));
  expect_same_beginning(path, other,
                        {"loss", "grad_norm", "reward_kept", "episodes/mean_turns",
                         "episodes/mean_environment_tokens", "environment/turns"});
  const fs::path disturbed = run_with_losses(recipe, evaluated(), {"tools", "generator"});
  EXPECT_EQ(timeless_metrics(disturbed), timeless_metrics(path));
  EXPECT_EQ(kept_rows(disturbed, kRunSteps / 2), rows);
}

TEST_F(EnvironmentRecipes, ATeacherCorrectsTheTurnsOfEpisodes) {
  const OnPolicyRecipe recipe = taught(kRunSteps);
  const fs::path path = run("whole", recipe, evaluated());
  const auto samples = read_samples(path);

  // Lengths are those of the model's tokens, and what is read is all of them.
  std::vector<double> own(kRunSteps), episodes(kRunSteps), read(kRunSteps);
  size_t answered = 0;
  for (const auto& [key, sample] : samples) {
    const auto step = static_cast<size_t>(key.first - 1);
    own.at(step) += static_cast<double>(num_own_tokens(sample));
    episodes.at(step) += 1;
    read.at(step) +=
        static_cast<double>(sample.at("prompt_ids").size() + sample.at("token_ids").size());
    answered += sample.at("spans").size() > 1;
  }
  EXPECT_EQ(episodes[1], 4);
  EXPECT_EQ(episodes[2], 2) << "ten prompts are an epoch";
  EXPECT_GT(answered, 0u) << "or the test shows nothing";
  const auto lengths = column(path, "completions/mean_length");
  const auto tokens = column(path, "num_tokens");
  ASSERT_EQ(lengths.size(), own.size());
  ASSERT_EQ(tokens.size(), own.size());
  for (size_t step = 0; step < own.size(); ++step) {
    EXPECT_NEAR(lengths[step], own[step] / episodes[step], 1e-9) << step;
    EXPECT_EQ(tokens[step] - (step == 0 ? 0 : tokens[step - 1]), read[step]) << step;
  }
  EXPECT_LT(column(path, "kd_loss").back(), column(path, "kd_loss").front()) << "it learns";
  EXPECT_EQ(column(path, "eval_kd_loss").size(), 2u);
  EXPECT_EQ(column(path, "eval_reward").size(), 2u);
  EXPECT_TRUE(column(path, "eval_loss").empty()) << "rows have no answers";

  // The same in another layout, whoever is lost, and in a run that stopped between two epochs.
  const fs::path other = run("split", split(taught(kFewSteps)), {"roles.tools.world.dp=2"});
  expect_same_beginning(path, other,
                        {"loss", "kd_loss", "grad_norm", "completions/mean_length", "reward",
                         "episodes/mean_turns", "environment/turns"});
  const fs::path disturbed =
      run_with_losses(recipe, evaluated(), {"tools", "generator", "teacher"});
  EXPECT_EQ(timeless_metrics(disturbed), timeless_metrics(path));
  EXPECT_EQ(read_samples(disturbed), samples);
  std::vector<std::string> settings = evaluated();
  settings.push_back("train.exit_interval=" + std::to_string(kRunSteps / 2));
  constexpr int kStopped = 4;
  const fs::path stopped = run("stopped", recipe, settings, kStopped);
  settings.back() = "--resume";
  run("stopped", recipe, settings);
  EXPECT_EQ(timeless_metrics(stopped), timeless_metrics(path));
  EXPECT_EQ(read_samples(stopped), samples);
}

TEST_F(EnvironmentRecipes, ATeacherSaysHowProbableTheTurnsOfEpisodesWere) {
  const fs::path path = run("sampled", taught_by_samples(2));
  EXPECT_EQ(column(path, "reverse_kl").size(), 2u);
  EXPECT_EQ(column(path, "kd_loss"), column(path, "reverse_kl"));
  EXPECT_EQ(read_samples(path).size(), 8u);
}

// Rows that begin episodes have no answers, which none of these commands may ask for.
TEST_F(EnvironmentRecipes, CommandsReadRowsWithoutAnswers) {
  const auto command = [&](const char* name, const OnPolicyRecipe& recipe) {
    std::vector<std::string> arguments = launch(folder_ / recipe.recipe, recipe);
    arguments.front() = name;
    const auto result = retort(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return result.output;
  };
  for (const OnPolicyRecipe& recipe :
       {taught(kRunSteps), taught_by_samples(kRunSteps), rejection(kRunSteps)}) {
    const std::string said = command("check", recipe);
    EXPECT_NE(said.find("before the next one a tool that answers 5 is ids"), std::string::npos)
        << said;
  }
  const std::string audited = command("audit", taught(kRunSteps));
  EXPECT_NE(audited.find("all: 10 prompts, 0 with a reference"), std::string::npos) << audited;
  command("plan", taught(kRunSteps));
}

}  // namespace
}  // namespace retort::test
