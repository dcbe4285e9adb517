// Groups of 200 texts against TRL's alignment (make_byte_group_goldens.py), group by group: one
// that reached a token too far would not be the golden's.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "models/text/tokenizer.h"
#include "recipes/distill/byte_groups.h"
#include "recipes/distill/matched_tokens.h"
#include "tests/support/source_folder.h"

namespace retort::recipes {
namespace {

struct GoldenSide {
  models::Tokenizer tokenizer;
  models::TokenBytes bytes;

  explicit GoldenSide(const std::filesystem::path& folder)
      : tokenizer(models::Tokenizer::load(folder)), bytes(tokenizer) {}
};

class ByteGroupGoldens : public testing::Test {
 protected:
  const GoldenSide& side(const std::string& name) {
    return sides_.try_emplace(name, folder_ / name).first->second;
  }

  // Of each group the student's tokens and the teacher's, one after the other; fails where a group
  // does not begin behind the one before it.
  std::vector<int64_t> counts(const GoldenSide& student, const GoldenSide& teacher,
                              const std::string& text) {
    const auto by_student = student.tokenizer.encode(text, /*add_special_tokens=*/false);
    const auto by_teacher = teacher.tokenizer.encode(text, /*add_special_tokens=*/false);
    const std::vector<uint8_t> student_targets(by_student.size(), 1);
    const std::vector<uint8_t> teacher_targets(by_teacher.size(), 1);
    std::vector<int64_t> counts;
    int64_t student_end = 0, teacher_end = 0;
    for (const ByteGroup& group : byte_groups({by_student, student_targets, student.bytes},
                                              {by_teacher, teacher_targets, teacher.bytes}, text,
                                              /*student_is_cut=*/false)) {
      EXPECT_EQ(group.student_begin, student_end);
      EXPECT_EQ(group.teacher_begin, teacher_end);
      EXPECT_FALSE(group.ends_turn);
      student_end = group.student_end;
      teacher_end = group.teacher_end;
      counts.push_back(student_end - group.student_begin);
      counts.push_back(teacher_end - group.teacher_begin);
    }
    EXPECT_EQ(student_end, static_cast<int64_t>(by_student.size()));
    EXPECT_EQ(teacher_end, static_cast<int64_t>(by_teacher.size()));
    return counts;
  }

  std::filesystem::path folder_ = test::source_folder() / "tests/recipes/goldens/byte_groups";
  nlohmann::json cases_ = nlohmann::json::parse(read_file(folder_ / "cases.json"));
  std::map<std::string, GoldenSide> sides_;
};

TEST_F(ByteGroupGoldens, AreTRLs) {
  const auto texts = cases_["texts"].get<std::vector<std::string>>();
  ASSERT_EQ(texts.size(), 200u);
  ASSERT_EQ(cases_["pairs"].size(), 4u);
  for (const auto& pair : cases_["pairs"]) {
    const std::string student = pair["student"], teacher = pair["teacher"];
    SCOPED_TRACE(student + " and " + teacher);
    ASSERT_EQ(pair["groups"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(counts(side(student), side(teacher), texts[i]),
                pair["groups"][i].get<std::vector<int64_t>>())
          << testing::PrintToString(texts[i]);
  }
}

// TRL compares how tokens are spelled, which is the same for two byte-level tokenizers.
TEST_F(ByteGroupGoldens, MatchTRLsTokens) {
  const GoldenSide& student = side("fine");
  const GoldenSide& teacher = side("coarse");
  const MatchedTokens matched =
      matched_tokens(student.bytes, teacher.bytes, student.tokenizer, teacher.tokenizer);
  EXPECT_GT(matched.student.size(), 256u);
  EXPECT_EQ(matched.student, cases_["matched"]["student"].get<std::vector<int64_t>>());
  EXPECT_EQ(matched.teacher, cases_["matched"]["teacher"].get<std::vector<int64_t>>());
}

}  // namespace
}  // namespace retort::recipes
