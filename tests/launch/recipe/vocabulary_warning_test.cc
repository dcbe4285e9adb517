// A teacher that can name more ids than the student is warned about before the run.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

class VocabularyWarning : public RecipeTest {
 protected:
  VocabularyWarning() { write_key_files(folder_); }

  // Of the warnings of a distillation those that are about ids.
  std::vector<std::string> warnings_about_ids() {
    std::ofstream(folder_ / "r.yaml") << with_folder(kDistillBase);
    std::vector<std::string> all;
    launch::load_recipe(folder_ / "r.yaml", {}, {}, &all);
    std::erase_if(all, [](const std::string& warning) {
      return warning.find("the teacher's tokenizer has") == std::string::npos;
    });
    return all;
  }
  void change_teacher(const std::string& file, const std::string& from, const std::string& to) {
    const std::filesystem::path path = folder_ / "teacher" / file;
    const std::string text = replaced(read_file(path), from, to);
    std::ofstream(path) << text;
  }
};

// Before anything is started; both sides count.
TEST_F(VocabularyWarning, MoreIdsThanThereAreAreRefused) {
  std::ofstream(folder_ / "r.yaml") << with_folder(kDistillBase);
  const auto load_with = [&](const std::string& count) {
    const std::vector<std::string> overrides{"distill.payload=topk", count};
    launch::load_recipe(folder_ / "r.yaml", overrides);
  };
  const auto said = [&](const std::string& count) { return message_of([&] { load_with(count); }); };
  load_with("distill.loss_top_k=100");
  const std::string student = said("distill.loss_top_k=1000000");
  EXPECT_NE(student.find("distill.loss_top_k: 1000000 is more than the vocabulary of the student"),
            std::string::npos)
      << student;
  EXPECT_NE(student.find("has (100)"), std::string::npos) << student;
  change_teacher("config.json", "\"vocab_size\": 100", "\"vocab_size\": 90");
  const std::string teacher = said("distill.loss_top_k=91");
  EXPECT_NE(teacher.find("91 is more than the vocabulary of 'teacher' ("), std::string::npos)
      << teacher;
}

TEST_F(VocabularyWarning, OfATeacherThatKnowsMore) {
  EXPECT_TRUE(warnings_about_ids().empty());
  change_teacher("config.json", "\"vocab_size\": 100", "\"vocab_size\": 128");
  EXPECT_TRUE(warnings_about_ids().empty()) << "its table is only padded";

  change_teacher("tokenizer.json", "\"w89\":99", "\"w89\":99,\"w90\":100,\"w91\":101");
  const std::vector<std::string> warnings = warnings_about_ids();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("roles.teacher: the teacher's tokenizer has 102 ids, the student's "
                             "100;"),
            std::string::npos)
      << warnings[0];
  EXPECT_NE(warnings[0].find("retort vocab add"), std::string::npos) << warnings[0];
}

}  // namespace
}  // namespace retort::test
