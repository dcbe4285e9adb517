// Recipes as text, with model folders and data files that exist.
#pragma once

#include <string>
#include <vector>

#include "launch/document/recipe_file.h"
#include "tests/support/folder_fixture.h"

namespace retort::test {

class RecipeTest : public FolderTest {
 protected:
  RecipeTest();

  // Writes `text` as <folder>/r.yaml with FOLDER replaced by the folder, and loads it.
  recipes::Recipe load(std::string text, const std::vector<std::string>& overrides = {},
                       launch::LoadOptions options = {});
  // What load() throws, with the folder's path taken out: "r.yaml:3: ...".
  std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {});
  // What a run saves of `recipe` is read as the same recipe.
  void expect_loads_as_saved(const recipes::Recipe& recipe, launch::LoadOptions options = {});
  std::string with_folder(std::string text) const;

  std::vector<std::string> warnings_;
};

// A complete sft and distill recipe; one key a line, so that a test can tell lines.
extern const std::string kSft;
extern const std::string kDistill;

// `text` with the first occurrence of `from` replaced; fails the test when there is none.
std::string replaced(std::string text, const std::string& from, const std::string& to);

}  // namespace retort::test
