#include "tests/launch/recipe_fixture.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

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
  std::string name = (fs::temp_directory_path() / "retort-recipe-XXXXXX").string();
  folder_ = ::mkdtemp(name.data());
  for (const char* model : {"student", "teacher"}) {
    fs::create_directory(folder_ / model);
    std::ofstream(folder_ / model / "config.json") << "{}";
  }
  fs::create_directory(folder_ / "empty");
  std::ofstream(folder_ / "train.jsonl") << "{\"text\": \"a\"}\n";
}

RecipeTest::~RecipeTest() { fs::remove_all(folder_); }

std::string RecipeTest::with_folder(std::string text) const {
  for (size_t at = text.find("FOLDER"); at != std::string::npos; at = text.find("FOLDER", at))
    text.replace(at, 6, folder_.string());
  return text;
}

recipes::Recipe RecipeTest::load(std::string text, const std::vector<std::string>& overrides,
                                 launch::LoadOptions options) {
  std::ofstream(folder_ / "r.yaml") << with_folder(std::move(text));
  warnings_.clear();
  return launch::load_recipe(folder_ / "r.yaml", overrides, options, &warnings_);
}

std::string RecipeTest::error_of(const std::string& text,
                                 const std::vector<std::string>& overrides) {
  try {
    load(text, overrides);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << e.what();
    std::string message = e.message();
    const std::string folder = folder_.string() + "/";
    for (size_t at = message.find(folder); at != std::string::npos; at = message.find(folder))
      message.erase(at, folder.size());
    return message;
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << "the recipe has no '" << from << "'";
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace retort::test
