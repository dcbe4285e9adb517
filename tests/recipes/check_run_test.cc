// `retort check` on dpo recipes: every loss passes, a pair that teaches nothing and a reference of
// another vocabulary fail. On recipes that draw completions: prompts with an answer pass; no prompt
// that can be used, and one without the reference of a reward, fail.
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "tests/recipes/on_policy_support.h"

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

TEST(CheckRun, TakesPromptsWithAnAnswerWhereCompletionsAreDrawn) {
  TemporaryFolder folder;
  // A program that is not there: a check starts none.
  const std::string rewards =
      "[{type: numeric}, {type: exact_match, weight: 0, name: exact}, "
      "{type: command, argv: [/nowhere/judge]}]";
  for (OnPolicyRecipe recipe : scoring_recipes(write_answers(folder, {1, 2, 3, 60}), rewards)) {
    recipe.data_extra += "  eval: [{path: " + write_prompts(folder, 3).string() + "}]\n";
    const fs::path path = write_on_policy(folder / recipe.recipe, recipe);
    const CommandResult result = retort({"check", path.string()});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    for (const char* part :
         {"3 of 4 rows of data.train can be used; the longest has 3 tokens, 13 with a",
          " completion of 10, of data.max_length 64\n", "answers.jsonl:4: the prompt has 60 tokens",
          "no room for a completion of 10 within data.max_length 64; raise it",
          "3 of 3 rows of data.eval can be used; the longest has 3 tokens",
          "every prompt has one for numeric, exact\n", "ok   drawn and trained",
          "answers.jsonl:1: log p of 8 tokens", "ok   cross-entropy against fp64"})
      EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
    EXPECT_FALSE(fs::exists(folder / recipe.recipe / "run"));
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
