// What goes wrong beside the student - generators, rewards, references, data, the disk - against
// the real program.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "base/file.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr auto kDeadline = std::chrono::seconds(30);

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

OnPolicyRecipe grpo(const TemporaryFolder& folder) { return {.data = write_prompts(folder)}; }
OnPolicyRecipe rejection(const TemporaryFolder& folder) {
  return {.recipe = "rejection_sampling",
          .data = write_prompts(folder),
          .rows = 4,
          .block = {{"rounds", "2"}, {"prompts_per_round", "7"}},
          .data_extra = "  packing: false\n"};
}
OnPolicyRecipe dpo(const TemporaryFolder& folder) {
  return {.recipe = "dpo",
          .data = write_pairs(folder),
          .reference = "teacher",
          .rows = 4,
          .save_steps = 2,
          .block = {{"beta", "0.1"}}};
}

CommandResult launch(const TemporaryFolder& folder, const OnPolicyRecipe& recipe,
                     std::vector<std::string> more = {}) {
  std::vector<std::string> args{"launch", write_on_policy(folder.path(), recipe).string()};
  args.insert(args.end(), more.begin(), more.end());
  const auto result = retort(args, kDeadline);
  EXPECT_NE(result.exit_code, 124) << "hung\n" << result.output;
  EXPECT_TRUE(all_gone((folder / "run").string())) << "a process was left behind\n"
                                                   << result.output;
  return result;
}

// A command reward that runs this bash script.
std::string judge(const TemporaryFolder& folder, const std::string& script,
                  const std::string& timeout = "30s") {
  std::ofstream(folder / "judge.sh") << script;
  return "[{type: command, name: judge, argv: [bash, " + (folder / "judge.sh").string() +
         "], timeout: " + timeout + "}]";
}
constexpr const char* kAnswerNull =
    "exec sed -u -E 's/^\\{\"id\": ?([0-9]+).*/{\"id\": \\1, \"score\": null}/'\n";

TEST(GeneratorKilled, EndsTheRunWithItsNameAndResumes) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  recipe.save_steps = 2, recipe.steps = 100000;
  const std::string path = write_on_policy(folder.path(), recipe).string();
  {
    Command run({retort_binary(), "launch", path, "roles.generator.restarts=0"});
    ASSERT_TRUE(wait_until([&] { return metrics_rows(folder / "run") >= 5; }))
        << run.wait(std::chrono::seconds(0)).output;
    const int pid = role_process(folder.path(), "generator");
    ASSERT_GT(pid, 0);
    ::kill(pid, SIGKILL);
    const auto result = run.wait(kDeadline);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_TRUE(holds(result.output, "generator/0 failed first")) << result.output;
    EXPECT_TRUE(all_gone((folder / "run").string()));
  }
  const auto steps = static_cast<int64_t>(metrics_rows(folder / "run")) + 4;
  const auto again =
      retort({"launch", path, "--resume", "train.max_steps=" + std::to_string(steps)}, kDeadline);
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_EQ(static_cast<int64_t>(metrics_rows(folder / "run")), steps);
}

// Any rank of a replica, and a rank of a student that is split: the run ends by its name, with
// nobody left, and can be resumed.
class RankKilled : public testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(RankKilled, EndsTheRunWithItsNameAndResumes) {
  const auto& [role, rank] = GetParam();
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  recipe.save_steps = 2, recipe.steps = 100000;
  recipe.student_world = ", tp: 2", recipe.generator_world = ", tp: 2";
  const std::string path = write_on_policy(folder.path(), recipe).string();
  {
    Command run({retort_binary(), "launch", path, "roles.generator.restarts=0"});
    ASSERT_TRUE(wait_until([&] { return metrics_rows(folder / "run") >= 3; }))
        << run.wait(std::chrono::seconds(0)).output;
    const int pid = role_process(folder.path(), role, rank);
    ASSERT_GT(pid, 0);
    ::kill(pid, SIGKILL);
    const auto result = run.wait(kDeadline);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_TRUE(holds(result.output, role + "/" + std::to_string(rank) + " failed first"))
        << result.output;
    EXPECT_TRUE(all_gone((folder / "run").string()));
  }
  const auto steps = static_cast<int64_t>(metrics_rows(folder / "run")) + 2;
  const auto again =
      retort({"launch", path, "--resume", "train.max_steps=" + std::to_string(steps)}, kDeadline);
  EXPECT_EQ(again.exit_code, 0) << again.output;
}
INSTANTIATE_TEST_SUITE_P(Table, RankKilled,
                         testing::Values(std::pair<std::string, int>{"generator", 0},
                                         std::pair<std::string, int>{"generator", 1},
                                         std::pair<std::string, int>{"student", 1}),
                         [](const auto& info) {
                           return info.param.first + std::to_string(info.param.second);
                         });

struct BadJudge {
  std::string name, script, message;
};
class BadJudges : public testing::TestWithParam<BadJudge> {};

TEST_P(BadJudges, EndTheRunByName) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  recipe.rewards = judge(folder, GetParam().script, GetParam().name == "hangs" ? "2s" : "30s");
  // each rank has a judge of its own
  if (GetParam().name == "dies") recipe.dp = 2, recipe.rows = 4;
  const auto result = launch(folder, recipe);
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_TRUE(holds(result.output, "judge")) << result.output;
  EXPECT_TRUE(holds(result.output, GetParam().message)) << result.output;
  EXPECT_EQ(metrics_rows(folder / "run"), 0u);
}
INSTANTIATE_TEST_SUITE_P(
    Table, BadJudges,
    testing::Values(BadJudge{"hangs", "exec sleep 1000\n", "timeout"},
                    BadJudge{"dies", "read -r line\nexit 7\n", "7"},
                    BadJudge{"rubbish", "read -r line\necho quite good\nexec sleep 1000\n",
                             "quite good"}),
    [](const auto& info) { return info.param.name; });

TEST(Rewards, AllEqualTrainNothingAndFinish) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  recipe.rewards = "[{type: length, min: 0, max: 1000}]";
  const auto result = launch(folder, recipe);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* key : {"reward", "frac_reward_zero_std"})
    EXPECT_EQ(column(folder / "run", key), (std::vector<double>{1, 1, 1, 1})) << key;
  for (const char* key : {"loss", "reward_std", "grad_norm"})
    EXPECT_EQ(column(folder / "run", key), (std::vector<double>{0, 0, 0, 0})) << key;
}

TEST(Rewards, AllUnscorableAreCountedAndFinish) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  recipe.rewards = judge(folder, kAnswerNull);
  const auto result = launch(folder, recipe);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(column(folder / "run", "num_unscorable"), (std::vector<double>{8, 8, 8, 8}));
  for (const char* key : {"loss", "grad_norm"})
    EXPECT_EQ(column(folder / "run", key), (std::vector<double>{0, 0, 0, 0})) << key;
}

TEST(Rewards, NothingToKeepIsAnErrorThatSaysSo) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = rejection(folder);
  recipe.rewards = judge(folder, kAnswerNull);
  const auto result = launch(folder, recipe);
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_TRUE(holds(result.output, "kept none of 0 scorable samples (28 unscorable)"))
      << result.output;
}

// Row 3 alone is too long; with two ranks only one of them meets it.
TEST(LongPrompt, IsABadRowOnEveryLayout) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  std::string lines = read_file(recipe.data), words = "w1";
  for (int i = 0; i < 70; ++i)
    words += " w2";
  lines.insert(lines.find('\n', lines.find('\n') + 1) + 1, "{\"prompt\": \"" + words + "\"}\n");
  std::ofstream(recipe.data) << lines;
  recipe.data_extra = "  shuffle: false\n";
  recipe.generation["save_samples"] = "true";  // --overwrite knows what such a run wrote
  const auto alone = launch(folder, recipe);
  EXPECT_EQ(alone.exit_code, 2) << alone.output;
  EXPECT_TRUE(holds(alone.output, "prompts.jsonl:3: the prompt has 71 tokens")) << alone.output;
  recipe.dp = 2, recipe.rows = 4;
  const auto result = launch(folder, recipe, {"--overwrite"});
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_TRUE(holds(result.output, "prompts.jsonl:3: the prompt has 71 tokens")) << result.output;
  EXPECT_TRUE(holds(result.output, "student/0 failed first: it exited with code 2"))
      << result.output;
  recipe.data_extra += "  on_bad_sample: skip\n";
  const auto skipped = launch(folder, recipe, {"--overwrite"});
  EXPECT_EQ(skipped.exit_code, 0) << skipped.output;
  EXPECT_TRUE(holds(read_file(folder / "run/logs/student-0.log"), "1 bad samples were skipped"))
      << skipped.output;
}

TEST(LongPrompt, OfOnPolicyDistillationIsABadRow) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe{.recipe = "on_policy_distill",
                        .data = write_prompts(folder),
                        .teacher = "teacher",
                        .rows = 4,
                        .generation = {{"max_new_tokens", "10"}}};
  std::string lines = read_file(recipe.data), words = "w1";
  for (int i = 0; i < 59; ++i)
    words += " w2";
  lines.insert(lines.find('\n', lines.find('\n') + 1) + 1,
               "{\"prompt\": \"" + words + "\", \"completion\": \" w3\"}\n");
  std::ofstream(recipe.data) << lines;
  recipe.data_extra = "  packing: false\n  shuffle: false\n";
  const std::string bad = "prompts.jsonl:3: the prompt has 60 tokens";
  const auto alone = launch(folder, recipe);
  EXPECT_EQ(alone.exit_code, 2) << alone.output;
  EXPECT_TRUE(holds(alone.output, bad)) << alone.output;
  const auto checked = retort({"check", (folder / "recipe.yaml").string()}, kDeadline);
  EXPECT_EQ(checked.exit_code, 2) << checked.output;
  EXPECT_TRUE(holds(checked.output, bad)) << checked.output;

  recipe.data_extra += "  on_bad_sample: skip\n";
  const auto skipped = launch(folder, recipe, {"--overwrite"});
  EXPECT_EQ(skipped.exit_code, 0) << skipped.output;
  EXPECT_TRUE(holds(read_file(folder / "run/logs/student-0.log"), "1 bad samples were skipped"))
      << skipped.output;
}

// One of two ranks meets it; both say so, and the run ends with the code of a user's mistake.
TEST(BadPair, EndsTheRunByItsRow) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = dpo(folder);
  std::ofstream(recipe.data, std::ios::app) << "{\"prompt\": \"w1\", \"chosen\n";
  recipe.dp = 2;
  const auto result = launch(folder, recipe);
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_TRUE(holds(result.output, "pairs.jsonl:13")) << result.output;
  EXPECT_TRUE(holds(result.output, "failed first: it exited with code 2")) << result.output;
}

TEST(Reference, WithAnotherVocabularyIsRefused) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = dpo(folder);
  fs::copy(goldens() / "teacher", folder / "other", fs::copy_options::recursive);
  std::string text = read_file(folder / "other/tokenizer.json");
  text.replace(text.find("\"w7\""), 4, "\"x7\"");
  std::ofstream(folder / "other/tokenizer.json") << text;
  recipe.reference = (folder / "other").string();
  for (const char* command : {"launch", "plan"}) {
    const auto result =
        retort({command, write_on_policy(folder.path(), recipe).string()}, kDeadline);
    // the launcher sees it, before any process starts
    EXPECT_EQ(result.exit_code, 2) << command << result.output;
    EXPECT_TRUE(holds(result.output, "tokenizer") && holds(result.output, "role 'reference'"))
        << command << result.output;
  }
}

TEST(Reference, MayNotChangeWhenARunIsResumed) {
  TemporaryFolder folder;
  const OnPolicyRecipe recipe = dpo(folder);
  ASSERT_EQ(launch(folder, recipe).exit_code, 0);
  const auto result = launch(
      folder, recipe,
      {"--resume", "train.max_steps=8", "roles.reference.model=" + (goldens() / "qwen3").string()});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_TRUE(holds(result.output, "the reference model or its tokenizer changed"))
      << result.output;
  EXPECT_EQ(metrics_rows(folder / "run"), 4u);
}

TEST(GeneratorModel, OfAnotherShapeIsRefusedByName) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  recipe.generator_model = "teacher";
  // before any process starts, and by all that look at the recipe before
  for (const char* command : {"launch", "plan", "check"}) {
    const auto result =
        retort({command, write_on_policy(folder.path(), recipe).string()}, kDeadline);
    EXPECT_EQ(result.exit_code, 2) << command << result.output;
    EXPECT_TRUE(holds(result.output, "role 'generator': the model of") &&
                holds(result.output, "shapes"))
        << command << result.output;
    EXPECT_FALSE(fs::exists(folder / "run")) << command;
  }
}

TEST(DiskFull, WhileKeptRowsAreWrittenLeavesNothingHalfWritten) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = rejection(folder);
  recipe.block["prompts_per_round"] = "10", recipe.block["top_n"] = "4";
  recipe.generation["max_new_tokens"] = "40";
  const std::string path = write_on_policy(folder.path(), recipe).string();
  // A file-size limit makes every larger write fail as a full disk does (EFBIG), in all processes
  // of the run.
  std::ofstream(folder / "limited.sh") << "trap '' XFSZ\nulimit -f 8\nexec \"$@\"\n";
  Command run({"bash", (folder / "limited.sh").string(), retort_binary(), "launch", path});
  const auto result = run.wait(kDeadline);
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_TRUE(holds(result.output, "round-0.jsonl")) << result.output;
  for (const auto& entry : fs::directory_iterator(folder / "run/kept"))
    EXPECT_EQ(entry.path().filename(), "round-0.metrics") << entry.path();
  const auto again = launch(folder, recipe, {"--resume"});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_GT(fs::file_size(folder / "run/kept/round-0.jsonl"), 8192u) << "the limit was not met";
}

}  // namespace
}  // namespace retort::test
