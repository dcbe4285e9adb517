// Which tokens of student and teacher stand for the same bytes: each rule of byte_groups() by rows
// that are written down token by token.
#include "recipes/distill/byte_groups.h"

#include <gtest/gtest.h>

#include <ostream>
#include <utility>

#include "tests/recipes/objectives/spelled_tokens.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::recipes {

// Without a name of its own gtest would print bytes.
void PrintTo(const ByteGroup& group, std::ostream* out) {
  *out << "{" << group.student_begin << ", " << group.student_end << ", " << group.teacher_begin
       << ", " << group.teacher_end << (group.ends_turn ? ", end" : "") << "}";
}

namespace {

using test::SpelledRow;
using Groups = std::vector<ByteGroup>;

Groups grouped(const SpelledRow& student, const SpelledRow& teacher, bool student_is_cut = false) {
  return byte_groups({student.ids(), student.is_target(), student.bytes()},
                     {teacher.ids(), teacher.is_target(), teacher.bytes()}, "rows.jsonl:7",
                     student_is_cut);
}

// The same with the sides exchanged, which must change nothing but the sides.
Groups mirrored(const SpelledRow& student, const SpelledRow& teacher) {
  Groups groups = grouped(teacher, student);
  for (ByteGroup& group : groups) {
    std::swap(group.student_begin, group.teacher_begin);
    std::swap(group.student_end, group.teacher_end);
  }
  return groups;
}

void expect_groups(const SpelledRow& student, const SpelledRow& teacher, const Groups& expected) {
  EXPECT_EQ(grouped(student, teacher), expected);
  EXPECT_EQ(mirrored(student, teacher), expected);
}

ByteGroup end_of(int64_t student, int64_t teacher) {
  return {student, student + 1, teacher, teacher + 1, true};
}

TEST(ByteGroups, AreCutWhereBothAre) {
  expect_groups(SpelledRow({"The", "▁c", "at", "▁sat"}), SpelledRow({"Th", "e", "▁cat▁s", "at"}),
                {{0, 1, 0, 2}, {1, 4, 2, 4}});
  // A character of three bytes, in pieces.
  expect_groups(SpelledRow({"<0xE5>", "<0xAD>", "<0xA6>", "生"}), SpelledRow({"学", "生"}),
                {{0, 3, 0, 1}, {3, 4, 1, 2}});
  EXPECT_EQ(grouped(SpelledRow({}), SpelledRow({})), Groups{});
}

TEST(ByteGroups, AreThoseOfTargetsRunByRun) {
  expect_groups(SpelledRow({"q", "ab", "c", "q", "q", "d"}, "011001"),
                SpelledRow({"a", "bc", "other", "d"}, "1101"), {{1, 3, 0, 2}, {5, 6, 3, 4}});
  // Both begin anew in each run: no group reaches over what lies between.
  expect_groups(SpelledRow({"ab", "q", "c"}, "101"), SpelledRow({"a", "b", "q", "c"}, "1101"),
                {{0, 1, 0, 2}, {2, 3, 3, 4}});
}

TEST(ByteGroups, EndWithTheTokensThatEndTheTurn) {
  // White space behind them is in no group, and of several tokens the first ends the turn.
  expect_groups(SpelledRow({"a", "b", "<|im_end|>", "\n"}), SpelledRow({"ab", "<|eot_id|>"}),
                {{0, 2, 0, 1}, end_of(2, 1)});
  expect_groups(SpelledRow({"a", "<|eom|>", "<|end|>", "\n", "\n"}), SpelledRow({"a", "<|eos|>"}),
                {{0, 1, 0, 1}, end_of(1, 1)});
  // One that only one side has ends nothing; white space before it stays what was said.
  expect_groups(SpelledRow({"a", "\n", "<|im_end|>"}), SpelledRow({"a", "\n"}),
                {{0, 1, 0, 1}, {1, 2, 1, 2}});
  // Nothing was said.
  expect_groups(SpelledRow({"<|im_end|>", "\n"}), SpelledRow({"<|eot_id|>"}), {end_of(0, 0)});
}

TEST(ByteGroups, HoldSpecialTokensWithinByTheirContent) {
  expect_groups(SpelledRow({"a", "<|x|>", "b", "<|im_end|>"}),
                SpelledRow({"a", "<", "|x|", ">", "b", "<|eot|>"}),
                {{0, 1, 0, 1}, {1, 2, 1, 4}, {2, 3, 4, 5}, end_of(3, 5)});
}

TEST(ByteGroups, DoNotCountASpaceThatOneSideBeginsWith) {
  expect_groups(SpelledRow({"▁The", "▁cat"}), SpelledRow({"The", "▁cat"}),
                {{0, 1, 0, 1}, {1, 2, 1, 2}});
  // One that is a token of its own belongs to the next group.
  expect_groups(SpelledRow({"▁", "学", "生"}), SpelledRow({"学", "生"}),
                {{0, 2, 0, 1}, {2, 3, 1, 2}});
  // One of two is such a space.
  expect_groups(SpelledRow({"▁▁a"}), SpelledRow({"▁", "a"}), {{0, 1, 0, 2}});
  // White space alone is no end that one side has more of.
  expect_groups(SpelledRow({"▁", "\n"}), SpelledRow({"\n"}), {{0, 2, 0, 1}});
  // What both begin with counts.
  expect_groups(SpelledRow({"▁", "a"}), SpelledRow({"▁", "a"}), {{0, 1, 0, 1}, {1, 2, 1, 2}});
}

// Who reads the other one's chat template spells its sign out.
TEST(ByteGroups, LeaveOutTheOtherSidesSignInWords) {
  expect_groups(SpelledRow({"a", "b", "<|im_end|>", "\n"}),
                SpelledRow({"ab", "<", "|im_end|", ">", "\n"}), {{0, 2, 0, 1}});
  expect_groups(SpelledRow({"ab", "<", "|eot|", ">"}), SpelledRow({"a", "b", "<|eot|>"}),
                {{0, 1, 0, 2}});
}

// A completion may be cut within a character, or hold bytes that are no text.
TEST(ByteGroups, LeaveOutBytesThatAreNoText) {
  expect_groups(SpelledRow({"a", "<0xF0>", "<0x9F>"}), SpelledRow({"a"}), {{0, 1, 0, 1}});
  expect_groups(SpelledRow({"a", "<0xFF>", "b"}), SpelledRow({"a"}), {{0, 1, 0, 1}});
}

TEST(ByteGroups, LeaveOutWhatOneSideHasMoreOfAtTheBeginning) {
  expect_groups(SpelledRow({"<think>", "\n\n", "</think>", "\n\n", "Yes", ".", "<|im_end|>"}),
                SpelledRow({"Ye", "s", ".", "<|eot_id|>"}),
                {{4, 5, 0, 2}, {5, 6, 2, 3}, end_of(6, 3)});
  // With sentencepiece's space on the other side.
  expect_groups(SpelledRow({"<think>", "\n\n", "Yes", "."}), SpelledRow({"▁Yes", "."}),
                {{2, 3, 0, 1}, {3, 4, 1, 2}});
  // The shorter one begins in the midst of "\n\nYes": up to the first cut of both nothing counts.
  expect_groups(SpelledRow({"<think>", "\n\nYes", ".", "!"}), SpelledRow({"Yes.", "!"}),
                {{3, 4, 1, 2}});
  // All of it is more.
  expect_groups(SpelledRow({"<think>", "\n\n", "<|im_end|>"}), SpelledRow({"<|eot_id|>"}),
                {end_of(2, 0)});
}

TEST(ByteGroups, LeaveOutWhiteSpaceThatOneSideEndsWith) {
  expect_groups(SpelledRow({"a", "b", "\n", "\n", "<|im_end|>"}), SpelledRow({"ab", "<|eot|>"}),
                {{0, 2, 0, 1}, end_of(4, 1)});
  expect_groups(SpelledRow({"a", "\n", "▁\n"}), SpelledRow({"a", "\n"}),
                {{0, 1, 0, 1}, {1, 2, 1, 2}});
  // A token that holds it and more has no counterpart.
  expect_groups(SpelledRow({"a", ".\n"}), SpelledRow({"a", "."}), {{0, 1, 0, 1}});
  // With more at the beginning, too.
  expect_groups(SpelledRow({"<think>", "a", "b"}), SpelledRow({"a", "b", "▁▁"}),
                {{1, 2, 0, 1}, {2, 3, 1, 2}});
}

TEST(ByteGroups, TakeTokensWithoutBytesWithTheNext) {
  expect_groups(SpelledRow({"", "a", "", "b", "", ""}), SpelledRow({"a", "b"}),
                {{0, 2, 0, 1}, {2, 6, 1, 2}});
  expect_groups(SpelledRow({"a", "", "b"}), SpelledRow({"a", "", "b", ""}),
                {{0, 1, 0, 1}, {1, 3, 1, 4}});
  // Nor do they stand in the way of the end sign.
  expect_groups(SpelledRow({"a", "<|im_end|>", ""}), SpelledRow({"a", "<|eot|>"}),
                {{0, 1, 0, 1}, end_of(1, 1)});
}

TEST(ByteGroups, OfACutRowAreThoseOfItsBeginning) {
  const SpelledRow teacher({"The", "▁cat▁s", "at", "<|eot|>", "q", "Yes", "<|eot|>"}, "1111011");
  const auto cut = [&](const std::vector<std::string>& tokens, const std::string& targets = "") {
    return grouped(SpelledRow(tokens, targets), teacher, /*student_is_cut=*/true);
  };
  EXPECT_EQ(cut({"The", "▁cat", "▁s"}), (Groups{{0, 1, 0, 1}, {1, 3, 1, 2}}));
  // The end of the teacher's turn has no counterpart, unless the row is cut behind it.
  EXPECT_EQ(cut({"The▁cat", "▁sat"}), (Groups{{0, 2, 0, 3}}));
  EXPECT_EQ(cut({"The▁cat", "▁sat", "<|im_end|>"}), (Groups{{0, 2, 0, 3}, end_of(2, 3)}));
  EXPECT_EQ(cut({"The▁cat", "▁sat", "<|im_end|>", "q", "Y"}, "11101"),
            (Groups{{0, 2, 0, 3}, end_of(2, 3)}));
  // A token that was cut off in its midst is in no group.
  EXPECT_EQ(cut({"The", "▁c"}), (Groups{{0, 1, 0, 1}}));
  EXPECT_EQ(cut({}), Groups{});
  // "at" ends the teacher's answer, and yet it is no rest of it.
  EXPECT_EQ(grouped(SpelledRow({"at"}), SpelledRow({"at", "▁bat"}), true), (Groups{{0, 1, 0, 1}}));
}

TEST(ByteGroups, OfACutRowWithMoreAtTheBeginningNeedSixteenBytes) {
  const std::vector<std::string> thought{"<think>", "\n\n", "</think>", "\n\n"};
  const auto behind_thought = [&](const std::vector<std::string>& tokens) {
    std::vector<std::string> all = thought;
    all.insert(all.end(), tokens.begin(), tokens.end());
    return SpelledRow(all);
  };
  const Groups counted{{0, 1, 4, 5}, {1, 2, 5, 6}};
  const SpelledRow beginning({"Distillation", "▁compresses"});
  EXPECT_EQ(grouped(beginning, behind_thought({"Distillation", "▁compresses", "▁much"}), true),
            counted);
  EXPECT_EQ(grouped(behind_thought({"Distillation", "▁compresses"}),
                    SpelledRow({"Distillation", "▁compresses", "▁much"}), true),
            (Groups{{4, 5, 0, 1}, {5, 6, 1, 2}}));

  // So few might be a chance.
  const SpelledRow answer({"Distillation", "▁compresses"});
  EXPECT_EQ(grouped(behind_thought({"Distillation"}), answer, true), Groups{});
  EXPECT_EQ(grouped(behind_thought({}), answer, true), Groups{});
}

TEST(ByteGroups, OfOtherBytesAreRefused) {
  const SpelledRow composed({"caf", "é", "▁noir"});
  const SpelledRow marked({"cafe", "\u0301", "▁noir"});
  const auto refusal = [&](bool cut) {
    return test::message_of([&] { grouped(marked, composed, cut); });
  };
  const std::string message = refusal(false);
  EXPECT_TRUE(message.starts_with("rows.jsonl:7: the teacher's tokenizer reads other bytes"))
      << message;
  EXPECT_NE(message.find("at offset 3 of the answer ('é noir' and 'e\u0301 noir')"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("NFC"), std::string::npos) << message;

  // They are refused in the midst of a cut row, too, once it is clear that both begin alike.
  const std::vector<std::string> long_one{"A▁long▁beginning▁", "é"};
  test::expect_refused("at offset 17", [&] {
    grouped(SpelledRow({"A▁long▁beginning▁", "e", "\u0301", "x"}), SpelledRow(long_one), true);
  });
  // White space within what was said is not passed over.
  test::expect_refused("at offset 1", [&] {
    grouped(SpelledRow({"a", "\n", "b"}), SpelledRow({"a", "▁", "b"}));
  });
  // More at the end is no beginning.
  test::expect_refused("at offset 1", [&] { grouped(SpelledRow({"a"}), SpelledRow({"a", "b"})); });
}

TEST(ByteGroups, OfAnotherNumberOfAnswersAreRefused) {
  const SpelledRow two({"a", "q", "b"}, "101");
  const SpelledRow one({"a"});
  test::expect_refused("rows.jsonl:7: the student's row has 1 answers and the teacher's 2",
                       [&] { grouped(one, two); });
  test::expect_refused("2 answers", [&] { grouped(two, one, /*student_is_cut=*/true); });
  EXPECT_EQ(grouped(one, two, /*student_is_cut=*/true), (Groups{{0, 1, 0, 1}}));
}

// Qwen's tokenizer writes every text in NFC, Llama 3's does not.
TEST(ByteGroups, OfRealTokenizersThatNormaliseAreRefused) {
  const auto folder = test::source_folder() / "tests/text/goldens";
  const auto student = models::Tokenizer::load(folder / "qwen");
  const auto teacher = models::Tokenizer::load(folder / "llama3");
  const models::TokenBytes student_bytes(student), teacher_bytes(teacher);
  const auto groups = [&](const std::string& text) {
    const auto by_student = student.encode(text, false), by_teacher = teacher.encode(text, false);
    const std::vector<uint8_t> all(text.size(), 1);
    return byte_groups({by_student, std::span(all).first(by_student.size()), student_bytes},
                       {by_teacher, std::span(all).first(by_teacher.size()), teacher_bytes},
                       "rows.jsonl:7", false);
  };
  EXPECT_GT(groups("A caf\u00e9 au lait.").size(), 3u);
  test::expect_refused("at offset 5", [&] { groups("A cafe\u0301 au lait."); });
}

}  // namespace
}  // namespace retort::recipes
