// `retort check` on dpo recipes: every loss passes, a pair that teaches nothing and a reference of
// another vocabulary fail. On recipes that draw completions: prompts with an answer pass; no prompt
// that can be used, and one without the reference of a reward, fail.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

struct CheckCase {
  std::string dpo = "{}";
  std::string reference = (goldens() / "teacher").string();
  std::string pairs = (goldens() / "pairs.jsonl").string();
};

CommandResult check(const TemporaryFolder& folder, const CheckCase& c) {
  const fs::path recipe = folder / "recipe.yaml";
  std::ofstream out(recipe);
  out << "recipe: dpo\noutput_dir: " << (folder / "run").string()
      << "\nroles:\n  student: {model: " << (goldens() / "qwen3").string() << "}\n";
  if (!c.reference.empty()) out << "  reference: {model: " << c.reference << "}\n";
  out << "data: {train: [{path: " << c.pairs << "}], max_length: 64}\ndpo: " << c.dpo << "\n";
  out.close();
  return retort({"check", recipe.string()});
}

TEST(CheckRun, EveryPreferenceLossPasses) {
  for (const char* dpo :
       {"{}", "{loss_type: hinge}", "{loss_type: ipo}", "{loss_type: robust, label_smoothing: 0.1}",
        "{loss_type: cdpo, label_smoothing: 0.1}", "{loss_type: sigmoid_norm}",
        "{loss_type: apo_zero}", "{loss_type: apo_down}",
        "{loss_type: exo_pair, label_smoothing: 0.1}", "{loss_type: nca_pair}",
        "{loss_type: bco_pair}", "{loss_type: sppo_hard}", "{loss_type: aot}",
        "{loss_type: aot_unpaired}", "{loss_type: discopop}",
        "{loss_type: [sigmoid, sft], loss_weights: [1.0, 0.2]}"}) {
    TemporaryFolder folder;
    const CommandResult result = check(folder, {.dpo = dpo});
    EXPECT_EQ(result.exit_code, 0) << dpo << result.output;
    EXPECT_NE(result.output.find("ok   vocabularies"), std::string::npos) << result.output;
    EXPECT_FALSE(fs::exists(folder / "run"));
  }
  for (const char* dpo : {"{loss_type: simpo}", "{loss_type: orpo}", "{loss_type: sft}"}) {
    TemporaryFolder folder;
    const CommandResult result = check(folder, {.dpo = dpo, .reference = ""});
    EXPECT_EQ(result.exit_code, 0) << dpo << result.output;
    EXPECT_NE(result.output.find("all checks passed"), std::string::npos) << result.output;
  }
}

TEST(CheckRun, FailsOnAPairThatTeachesNothing) {
  TemporaryFolder folder;
  std::ofstream(folder / "pairs.jsonl")
      << R"({"prompt": "w1 w2", "chosen": " w3", "rejected": " w3"})"
      << "\n";
  const CommandResult result = check(folder, {.pairs = (folder / "pairs.jsonl").string()});
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_NE(result.output.find("check 'pair' failed"), std::string::npos) << result.output;
}

TEST(CheckRun, FailsOnAReferenceOfAnotherVocabulary) {
  TemporaryFolder folder;
  fs::copy(goldens() / "teacher", folder / "other", fs::copy_options::recursive);
  std::string text = read_file(folder / "other/tokenizer.json");
  text.replace(text.find("\"w7\""), 4, "\"x7\"");
  std::ofstream(folder / "other/tokenizer.json") << text;
  const CommandResult result = check(folder, {.reference = (folder / "other").string()});
  EXPECT_EQ(result.exit_code, 2) << "the input is wrong" << result.output;
  EXPECT_NE(result.output.find("role 'reference': the tokenizer of"), std::string::npos)
      << result.output;
}

// Prompts of so many tokens, with an answer. One of 60 leaves no room for a completion of 10 in
// data.max_length 64.
fs::path write_answers(const TemporaryFolder& folder, const std::vector<int64_t>& lengths) {
  const fs::path path = folder / "answers.jsonl";
  std::ofstream file(path);
  for (const int64_t length : lengths) {
    file << R"({"prompt": "w1)";
    for (int64_t i = 1; i < length; ++i)
      file << " w" << i;
    file << R"(", "answer": "12", "level": "easy"})"
         << "\n";
  }
  return path;
}

// The recipes that draw completions of prompts and score them.
std::vector<OnPolicyRecipe> scoring_recipes(const fs::path& data, const std::string& rewards) {
  OnPolicyRecipe grpo{.data = data, .rewards = rewards, .data_extra = "  on_bad_sample: skip\n"};
  OnPolicyRecipe rejection = grpo;
  rejection.recipe = "rejection_sampling";
  rejection.block = {{"rounds", "2"}};
  return {grpo, rejection};
}

// A program that gives every completion this score.
std::string scoring_program(const TemporaryFolder& folder, const std::string& score) {
  const fs::path script = folder / "judge.sh";
  std::ofstream(script) << R"(exec sed -u -E 's/^\{"id": ?([0-9]+).*/{"id": \1, "score": )" << score
                        << "}/'\n";
  return "{type: command, name: judge, argv: [bash, " + script.string() + "]}";
}

TEST(CheckRun, TakesPromptsWithAnAnswerWhereCompletionsAreDrawn) {
  TemporaryFolder folder, held_out;
  const std::string rewards = "[{type: numeric}, {type: exact_match, weight: 0, name: exact}, " +
                              scoring_program(folder, "0.25") + "]";
  for (OnPolicyRecipe recipe : scoring_recipes(write_answers(folder, {1, 2, 3, 60}), rewards)) {
    recipe.data_extra += "  eval: [{path: " + write_answers(held_out, {1, 2, 3}).string() + "}]\n";
    const fs::path path = write_on_policy(folder / recipe.recipe, recipe);
    // More tokens than a check draws.
    const CommandResult result = retort({"check", path.string(), "generation.min_new_tokens=9"});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    for (const char* part :
         {"3 of 4 rows of data.train can be used; the longest has 3 tokens, 13 with a",
          " completion of 10, of data.max_length 64\n", "answers.jsonl:4: the prompt has 60 tokens",
          "no room for a completion of 10 within data.max_length 64; raise it",
          "3 of 3 rows of data.eval can be used; the longest has 3 tokens",
          "every prompt has one for numeric, exact\n", "ok   drawn and trained",
          "answers.jsonl:1: log p of 8 tokens", "ok   cross-entropy against fp64",
          "reward numeric               1, 1, 1 for the answers of 3 rows; 0 for 8 tokens",
          "reward exact                 1, 1, 1 for",
          "reward judge                 0.25, 0.25, 0.25"})
      EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
    EXPECT_FALSE(fs::exists(folder / recipe.recipe / "run"));
  }
}

// A run would end at its first step.
TEST(CheckRun, FailsOnARewardThatCannotScore) {
  TemporaryFolder folder;
  const fs::path data = write_answers(folder, {1, 2});
  for (const auto& [reward, why] : std::vector<std::pair<std::string, std::string>>{
           {"{type: command, argv: [/nowhere/judge]}", "/nowhere/judge"},
           {"{type: http, url: \"http://127.0.0.1:9/score\"}", "127.0.0.1:9"},
           {scoring_program(folder, "high"), "judge"}})
    for (const OnPolicyRecipe& recipe : scoring_recipes(data, "[" + reward + "]")) {
      const CommandResult result =
          retort({"check", write_on_policy(folder / "r", recipe).string()});
      EXPECT_NE(result.exit_code, 0) << result.output;
      EXPECT_NE(result.output.find(why), std::string::npos) << why << "\n" << result.output;
      EXPECT_EQ(result.output.find("all checks passed"), std::string::npos) << result.output;
    }
}

TEST(CheckRun, ShowsAdvantagesAndTheRatioAtEqualWeights) {
  TemporaryFolder folder;
  const fs::path data = write_answers(folder, {1, 2});
  using Block = std::map<std::string, std::string>;
  for (const auto& [block, advantages] : std::vector<std::pair<Block, std::string>>{
           {{}, "of rewards 0 to 3 in a group: -1.16 to 1.16"},
           {{{"scale_rewards", "none"}, {"loss_type", "grpo"}}, "-1.5 to 1.5"},
           {{{"advantage", "rloo"}, {"loss_type", "dr_grpo"}}, "-2 to 2"},
           {{{"advantage", "reinforce_plus_plus"}, {"loss_type", "bnpo"}}, "-1.16 to 1.16"},
           {{{"importance_sampling_level", "sequence"}, {"num_iterations", "2"}}, "-1.16 to 1.16"},
           {{{"sampling_correction", "sequence_mask"}}, "-1.16 to 1.16"}}) {
    OnPolicyRecipe recipe{.data = data, .block = block, .rewards = "[{type: numeric}]"};
    recipe.generation["temperature"] = "0.7";
    recipe.generation["stop"] = "[\"w3\", \"w5 w5\"]";
    const CommandResult result = retort({"check", write_on_policy(folder / "r", recipe).string()});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    for (const std::string& part :
         {advantages, std::string("ok   drawn by the recipe"), std::string("at temperature 0.7"),
          std::string("the loss of a sample with advantage 1 is -1, must be -1; 0 ratios clipped"),
          std::string("ok   direction")})
      EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
  }
}

// Its ratio is a weight of log p, so that the loss is not -1.
TEST(CheckRun, KnowsTheLossOfCispo) {
  TemporaryFolder folder;
  const OnPolicyRecipe recipe{
      .data = write_answers(folder, {1, 2}),
      .block = {{"loss_type", "cispo"}, {"epsilon_high", "4"}, {"num_iterations", "2"}},
      .rewards = "[{type: numeric}]"};
  const CommandResult result = retort({"check", write_on_policy(folder / "r", recipe).string()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("ok   ratio at equal weights"), std::string::npos) << result.output;
}

TEST(CheckRun, KnowsWhatACapBelowOneDoes) {
  TemporaryFolder folder;
  const fs::path data = write_answers(folder, {1, 2});
  for (const auto& [correction, loss, code] :
       std::vector<std::tuple<std::string, std::string, int>>{
           {"token_truncate", "is -0.5, must be -0.5;", 0},
           {"token_mask", "masks every token", 1}}) {
    OnPolicyRecipe recipe{.data = data, .rewards = "[{type: numeric}]"};
    recipe.block = {{"sampling_correction", correction}, {"importance_sampling_cap", "0.5"}};
    const CommandResult result = retort({"check", write_on_policy(folder / "r", recipe).string()});
    EXPECT_EQ(result.exit_code, code) << result.output;
    EXPECT_NE(result.output.find(loss), std::string::npos) << result.output;
  }
}

TEST(CheckRun, FailsWhereNoPromptLeavesRoomForACompletion) {
  TemporaryFolder folder;
  for (const OnPolicyRecipe& recipe :
       scoring_recipes(write_answers(folder, {60, 58}), "[{type: numeric}]")) {
    const fs::path path = write_on_policy(folder / recipe.recipe, recipe);
    const CommandResult result = retort({"check", path.string()});
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_NE(result.output.find("check 'prompts' failed: 0 of 2 rows of data.train can be used"),
              std::string::npos)
        << result.output;
  }
}

// A run would meet the row at some step, or never.
TEST(CheckRun, FailsOnAPromptWithoutTheReferenceOfAReward) {
  TemporaryFolder folder;
  const fs::path data = write_answers(folder, {1, 2});
  std::ofstream(data, std::ios::app) << R"({"prompt": "w1"})"
                                     << "\n";
  for (const OnPolicyRecipe& recipe :
       scoring_recipes(data, "[{type: length, min: 1}, {type: numeric}]")) {
    const fs::path path = write_on_policy(folder / recipe.recipe, recipe);
    const CommandResult result = retort({"check", path.string()});
    EXPECT_EQ(result.exit_code, 2) << "the input is wrong" << result.output;
    for (const char* part : {"numeric", "answers.jsonl:3", "has no reference to compare with"})
      EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
  }
}

}  // namespace
}  // namespace retort::test
