#include "tests/launch/recipe/recipe_fixture.h"

#include <fstream>

#include "launch/yaml/resolved_yaml.h"
#include "launch/yaml/role_values.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace fs = std::filesystem;

const std::string kSft = R"(recipe: sft
output_dir: run
roles:
  student:
    model: FOLDER/student
data:
  train: [{path: FOLDER/train.jsonl}]
train:
  max_steps: 10
)";

const std::string kDistill = R"(recipe: distill
output_dir: run
roles:
  student:
    model: FOLDER/student
  teacher:
    model: FOLDER/teacher
    world: {dp: 2}
data:
  train: [{path: FOLDER/train.jsonl}]
train:
  max_steps: 10
distill:
  teachers: [{role: teacher}]
)";

RecipeTest::RecipeTest() {
  for (const char* model : {"student", "teacher"}) {
    fs::create_directory(folder_ / model);
    std::ofstream(folder_ / model / "config.json") << "{}";
  }
  fs::create_directory(folder_ / "empty");
  fs::create_directories(folder_ / "cache" / "snapshots" / "1234");  // as the Hub's cache
  std::ofstream(folder_ / "cache" / "snapshots" / "1234" / "config.json") << "{}";
  std::ofstream(folder_ / "train.jsonl") << "{\"text\": \"a\"}\n";
}

std::string RecipeTest::with_folder(std::string text) const {
  for (size_t at = text.find("FOLDER"); at != std::string::npos; at = text.find("FOLDER", at))
    text.replace(at, 6, folder_.string());
  return text;
}

recipes::Recipe RecipeTest::load(std::string text, const std::vector<std::string>& overrides,
                                 launch::LoadOptions options) {
  std::ofstream(folder_ / "r.yaml") << with_folder(std::move(text));
  warnings_.clear();
  options.check_inputs = false;  // these models are empty
  return launch::load_recipe(folder_ / "r.yaml", overrides, options, &warnings_);
}

std::string RecipeTest::error_of(const std::string& text,
                                 const std::vector<std::string>& overrides) {
  const std::optional<Error> error = thrown([&] { load(text, overrides); });
  if (!error) return "no error";
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument) << error->what();
  std::string message = error->message();
  const std::string folder = folder_.string() + "/";
  for (size_t at = message.find(folder); at != std::string::npos; at = message.find(folder))
    message.erase(at, folder.size());
  return message;
}

// The saved text holds every field, so equal texts are equal recipes.
void RecipeTest::expect_loads_as_saved(const recipes::Recipe& recipe, launch::LoadOptions options) {
  options.check_inputs = false;
  const fs::path saved = folder_ / "recipe.resolved.yaml";
  const std::string text = launch::resolved_yaml(recipe);
  put(saved, text);
  launch::write_role_values(saved, launch::role_values(recipe));
  try {
    EXPECT_EQ(launch::resolved_yaml(launch::load_recipe(saved, {}, options)), text);
  } catch (const Error& error) {
    ADD_FAILURE() << "a run cannot load what it saved: " << error.what() << "\n" << text;
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << "the recipe has no '" << from << "'";
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace retort::test
