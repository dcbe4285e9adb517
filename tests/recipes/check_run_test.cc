// `retort check` on dpo recipes: every loss passes, a pair that teaches nothing and a reference of
// another vocabulary fail.
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "tests/recipes/run_support.h"

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

}  // namespace
}  // namespace retort::test
