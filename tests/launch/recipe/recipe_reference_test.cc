// docs/recipe.md says what the program reads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "launch/document/key_paths.h"
#include "launch/document/reference.h"
#include "recipes/document/reserved_keys.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

// With RETORT_UPDATE_DOCS=1 the file is written first.
TEST(RecipeReferenceTest, FileIsInStep) {
  const std::filesystem::path path = source_folder() / "docs" / "recipe.md";
  const std::string text = launch::recipe_reference_markdown();
  if (std::getenv("RETORT_UPDATE_DOCS")) write_file_atomically(path, text);
  EXPECT_EQ(read_file(path), text) << "write it anew: RETORT_UPDATE_DOCS=1 ctest -R recipe_test";
}

// What is said of names of other programs must not hide a key of ours.
TEST(RecipeReferenceTest, NoKeyIsTakenForOneOfAnotherProgram) {
  const std::vector<std::string> keys = launch::recipe_key_paths();
  EXPECT_GT(keys.size(), 300u);
  for (const std::string& key : keys) {
    EXPECT_EQ(recipes::reserved_key(key), "") << key;
    EXPECT_EQ(recipes::reserved_key("elsewhere." + key.substr(key.rfind('.') + 1)), "") << key;
  }
  EXPECT_EQ(launch::places_of_key("max_length"), "data.max_length");
}

TEST(RecipeReferenceTest, EveryBlockHasItsTable) {
  const std::string text = launch::recipe_reference_markdown();
  for (const char* heading :
       {"## The recipe", "## `roles.<name>`", "## `roles.<name>.world`", "## `data.train[]`",
        "## `train`", "## `distill.teachers[]`", "## `rpc`"})
    EXPECT_NE(text.find(heading), std::string::npos) << heading;
  EXPECT_NE(text.find("| `loss_top_k` | integer | `64` |"), std::string::npos);
  EXPECT_NE(text.find("| `payload` | `hidden_states` \\| `topk` \\| `full` \\| `target_logps` \\| "
                      "`sampled` | `hidden_states` |"),
            std::string::npos);
}

}  // namespace
}  // namespace retort::test
