// The recipes that the repository shows load, and what a run saves of them loads again.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "recipes/type/registry.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {
namespace fs = std::filesystem;

std::vector<fs::path> files_in(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == extension) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// The blocks of YAML in a page that are whole recipes.
std::vector<std::string> recipes_in(const fs::path& page) {
  std::ifstream text(page);
  std::vector<std::string> found;
  std::string block;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    if (inside && line == "```" && block.starts_with("recipe:")) found.push_back(block);
    if (inside && line != "```") block += line + "\n";
    if (line.starts_with("```")) {
      inside = line == "```yaml";
      block.clear();
    }
  }
  return found;
}

class ExampleRecipes : public RecipeTest {
 protected:
  // Models and data are made by scripts and are not there; nor is a module for devices.
  static constexpr launch::LoadOptions kWithoutFiles{.cuda = true, .check_files = false};

  void expect_loads(const fs::path& file) {
    std::vector<std::string> warnings;
    try {
      const recipes::Recipe recipe = launch::load_recipe(file, {}, kWithoutFiles, &warnings);
      EXPECT_TRUE(warnings.empty()) << warnings.front();
      expect_loads_as_saved(recipe, kWithoutFiles);
      expect_lost_are_watched(recipe);
      seen_.insert(recipe.recipe.text);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  // First, because a narrow terminal cuts the line off at the right.
  static void expect_lost_are_watched(const recipes::Recipe& recipe) {
    const recipes::RecipeType& type = recipes::recipe_type(recipe);
    if (!type.episodes_at_once(recipe)) return;
    const std::vector<std::string> watched = type.watched_metrics(recipe);
    ASSERT_FALSE(watched.empty());
    EXPECT_EQ(watched.front(), "episodes/num_lost");
  }
  void expect_all_types_seen() const {
    for (const std::string_view name : recipes::RecipeName::choices())
      EXPECT_TRUE(seen_.contains(std::string(name))) << "no example of recipe: " << name;
  }

  std::set<std::string> seen_;
};

TEST_F(ExampleRecipes, OfTheConfigurationsLoad) {
  for (const fs::path& file : files_in(source_folder() / "recipes/configs", ".yaml")) {
    SCOPED_TRACE(file.string());
    expect_loads(file);
  }
  expect_all_types_seen();
}

TEST_F(ExampleRecipes, OfThePagesLoad) {
  std::vector<fs::path> pages = files_in(source_folder() / "docs/recipes", ".md");
  pages.push_back(source_folder() / "README.md");
  for (const fs::path& page : pages)
    for (const std::string& text : recipes_in(page)) {
      SCOPED_TRACE(page.string());
      put(folder_ / "example.yaml", text);
      expect_loads(folder_ / "example.yaml");
    }
  expect_all_types_seen();
}

}  // namespace
}  // namespace retort::test
