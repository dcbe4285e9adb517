// What a student and a teacher with another tokenizer read of the same rows, and of what the
// student has drawn.
#include "recipes/distill/two_tokenizers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/printable.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using Ids = std::vector<int32_t>;

constexpr const char* kPrompt = "Which metal is liquid?\n";
constexpr const char* kAnswer = "It is mercury \xf0\x9f\x8c\xa1, \xe6\xb0\xb4\xe9\x8a\x80.";

models::Tokenizer trained(const std::filesystem::path& folder, int64_t vocab_size,
                          const std::string& text, const std::string& end) {
  models::train_tokenizer({text, text},
                          {.vocab_size = vocab_size,
                           .special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", end}},
                          folder);
  return models::Tokenizer::load(folder);
}

class TwoTokenizersTest : public ::testing::Test {
 protected:
  // Ends with the tokenizer's sign unless it is `open`.
  static Ids said(const models::Tokenizer& tokenizer, const std::string& text, const char* end) {
    Ids ids = tokenizer.encode(text, false);
    if (*end != 0) ids.push_back(tokenizer.token_to_id(end));
    return ids;
  }
  static void append(Ids& ids, std::vector<uint8_t>& targets, const Ids& more, bool target) {
    ids.insert(ids.end(), more.begin(), more.end());
    targets.resize(ids.size(), target ? 1 : 0);
  }
  data::Sample row(const std::string& mine, const std::string& theirs) const {
    data::Sample sample{.origin = "rows.jsonl:3"};
    append(sample.input_ids, sample.is_target, both_.student.encode(kPrompt, false), false);
    append(sample.input_ids, sample.is_target, said(both_.student, mine, "<end>"), true);
    data::Reading& reading = sample.reading;
    append(reading.input_ids, reading.is_target, both_.teacher.encode(kPrompt, false), false);
    append(reading.input_ids, reading.is_target, said(both_.teacher, theirs, "<stop>"), true);
    return sample;
  }
  static std::string text_of(const data::MicroBatch& batch, int64_t begin, int64_t end,
                             const models::TokenBytes& bytes) {
    std::string text;
    for (int64_t r = begin; r < end; ++r)
      text += bytes.of(static_cast<int32_t>(batch.targets.const_data_ptr<int64_t>()[r]));
    return text;
  }

  test::TemporaryFolder folder_;
  TwoTokenizers both_{trained(folder_.path() / "student", 290, "It is liquid. It is", "<end>"),
                      trained(folder_.path() / "teacher", 330,
                              "mercury, metal mercury; which metal is liquid mercury", "<stop>")};
};

TEST_F(TwoTokenizersTest, GroupsAreTheSameBytesOnBothSides) {
  const auto batch = data::make_micro_batch({row(kAnswer, kAnswer), row("Yes.", "Yes.")});
  const AlignedBatch aligned = align(batch, both_);
  ASSERT_EQ(aligned.ends.size(), 2u);
  std::string all;
  double weight = 0;
  bool is_merged = false;
  for (const losses::TokenGroup& group : aligned.groups) {
    const std::string mine =
        text_of(batch, group.student_begin, group.student_end, both_.student_bytes);
    EXPECT_EQ(mine, text_of(aligned.teacher, group.teacher_begin, group.teacher_end,
                            both_.teacher_bytes));
    all += mine;
    weight += group.weight;
    is_merged = is_merged || group.student_end - group.student_begin > 1;
  }
  std::string expected = kAnswer;
  expected += "Yes.";
  EXPECT_EQ(all, expected);
  EXPECT_TRUE(is_merged) << "the tokenizers are too much alike for this test";
  EXPECT_NEAR(weight, 2, 1e-12) << "each sample's groups weigh 1 together";

  // The signs that end a turn stand for each other.
  for (const losses::TokenGroup& end : aligned.ends) {
    EXPECT_EQ(text_of(batch, end.student_begin, end.student_end, both_.student_bytes), "<end>");
    EXPECT_EQ(text_of(aligned.teacher, end.teacher_begin, end.teacher_end, both_.teacher_bytes),
              "<stop>");
  }
}

TEST_F(TwoTokenizersTest, OtherBytesAreToldWithTheirRow) {
  const auto batch = data::make_micro_batch({row("It is mercury.", "It is Mercury.")});
  const std::string message = test::message_of([&] { align(batch, both_); });
  EXPECT_NE(message.find("rows.jsonl:3"), std::string::npos) << message;
  EXPECT_NE(message.find("offset 6"), std::string::npos) << message;
}

TEST_F(TwoTokenizersTest, ADrawIsReadBehindTheTeachersOwnPrompt) {
  const data::Sample of_data = row("No.", "No.");
  const Ids prompt = both_.teacher.encode(kPrompt, false);
  for (const char* end : {"", "<end>"}) {
    const Ids drawn = said(both_.student, kAnswer, end);
    const data::Reading reading = reading_of_draw(of_data, drawn, both_);
    Ids expected = prompt;
    const Ids answer = said(both_.teacher, kAnswer, *end == 0 ? "" : "<stop>");
    expected.insert(expected.end(), answer.begin(), answer.end());
    EXPECT_EQ(reading.input_ids, expected) << "end '" << end << "'";
    EXPECT_EQ(std::count(reading.is_target.begin(), reading.is_target.end(), 1),
              static_cast<int64_t>(answer.size()));
  }
}

// What the teacher's template puts before an answer, an empty thought for one, it reads before a
// draw as well.
TEST_F(TwoTokenizersTest, WhatStandsBeforeAnAnswerStandsBeforeADraw) {
  const data::Sample of_data = row("No.", "metal; No.");
  const Ids drawn = said(both_.student, "Yes.", "<end>");
  const Ids read = reading_of_draw(of_data, drawn, both_).input_ids;
  const size_t prompt = both_.teacher.encode(kPrompt, false).size();
  const Ids behind(read.begin() + static_cast<std::ptrdiff_t>(prompt), read.end());
  EXPECT_EQ(both_.teacher.decode(behind, false), "metal; Yes.<stop>");
}

// The student's row has lost its second answer, which the teacher reads.
TEST_F(TwoTokenizersTest, ADrawOfACutConversationTakesThePlaceOfItsOwnTurn) {
  data::Sample cut = row("No.", "No.");
  cut.truncated = true;
  append(cut.reading.input_ids, cut.reading.is_target, both_.teacher.encode(kPrompt, false), false);
  append(cut.reading.input_ids, cut.reading.is_target, said(both_.teacher, "mercury", "<stop>"),
         true);
  const Ids read = reading_of_draw(cut, said(both_.student, "Yes.", "<end>"), both_).input_ids;
  EXPECT_EQ(both_.teacher.decode(read, false), std::string(kPrompt) + "Yes.<stop>");
}

// Nothing is read behind a special token, and one that ends no turn is no end.
TEST_F(TwoTokenizersTest, ADrawEndsWithItsFirstSpecialToken) {
  const data::Sample of_data = row("No.", "No.");
  Ids drawn = both_.student.encode("It is", false);
  const auto said_tokens = static_cast<int64_t>(drawn.size());
  drawn.push_back(both_.student.token_to_id("<|im_start|>"));
  const data::Reading alone = reading_of_draw(of_data, drawn, both_);
  EXPECT_EQ(alone.drawn_tokens, said_tokens);
  drawn.push_back(both_.student.encode("t", false).front());
  const data::Reading followed = reading_of_draw(of_data, drawn, both_);
  EXPECT_EQ(followed.drawn_tokens, said_tokens);
  EXPECT_EQ(both_.teacher.decode(followed.input_ids, false), std::string(kPrompt) + "It is");
  EXPECT_EQ(alone.input_ids, followed.input_ids);
}

TEST_F(TwoTokenizersTest, WhatIsCutWithinACharacterIsLeftOut) {
  const data::Sample of_data = row("No.", "No.");
  Ids drawn = both_.student.encode(kAnswer, false);
  std::string text;
  while (true) {  // until the last token ends within a character
    drawn.pop_back();
    text.clear();
    for (const int32_t id : drawn)
      text += both_.student_bytes.of(id);
    ASSERT_FALSE(drawn.empty()) << "no token of this tokenizer ends within a character";
    if (!is_utf8(text)) break;
  }
  data::Sample sample = of_data;
  sample.reading = reading_of_draw(of_data, drawn, both_);
  const int64_t prompt = data::last_turn_begin(of_data.is_target);
  sample.input_ids.resize(static_cast<size_t>(prompt));
  sample.is_target.resize(static_cast<size_t>(prompt));
  append(sample.input_ids, sample.is_target, drawn, true);

  const auto batch = data::make_micro_batch({sample});
  const AlignedBatch aligned = align(batch, both_);
  EXPECT_TRUE(aligned.ends.empty());
  ASSERT_FALSE(aligned.groups.empty());
  EXPECT_LT(aligned.groups.back().student_end, batch.num_targets()) << "the half of a character";
  EXPECT_EQ(aligned.groups.back().teacher_end, aligned.teacher.num_targets());
}

}  // namespace
}  // namespace retort::recipes
