// `retort generate`.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

// A head may have more rows than the tokenizer has tokens.
TEST(GenerateRun, DrawsTokensOfTheTokenizerAlone) {
  TemporaryFolder folder;
  const std::string output = folder / "completions.jsonl";
  const CommandResult result =
      retort({"generate", "--model", goldens() / "padded", "--prompts", goldens() / "prompts.jsonl",
              "--output", output, "--temperature", "5", "--max-new-tokens", "40", "--ignore-eos"});
  ASSERT_EQ(result.exit_code, 0) << result.output;

  std::ifstream lines(output);
  int64_t drawn = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto completions = nlohmann::json::parse(line);
    for (const nlohmann::json& ids : completions.at("token_ids")) {
      drawn += static_cast<int64_t>(ids.size());
      for (const int64_t id : ids)
        EXPECT_LT(id, 64) << "a padding row of the head's 70";
    }
  }
  EXPECT_GT(drawn, 200);
}

}  // namespace
}  // namespace retort::test
