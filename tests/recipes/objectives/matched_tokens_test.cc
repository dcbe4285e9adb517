// Which ids of two vocabularies are the same token.
#include "recipes/distill/matched_tokens.h"

#include <gtest/gtest.h>

#include "tests/recipes/objectives/spelled_tokens.h"

namespace retort::recipes {
namespace {

using test::spelled_tokenizer;
using TokenIds = std::vector<int64_t>;

MatchedTokens matched(const std::vector<std::string>& student_tokens,
                      const std::vector<std::string>& teacher_tokens,
                      const std::string& student_names = "{}",
                      const std::string& teacher_names = "{}") {
  const test::TemporaryFolder student_folder, teacher_folder;
  const auto student = spelled_tokenizer(student_folder, student_tokens, student_names);
  const auto teacher = spelled_tokenizer(teacher_folder, teacher_tokens, teacher_names);
  return matched_tokens(models::TokenBytes(student), models::TokenBytes(teacher), student, teacher);
}

TEST(MatchedTokens, HaveTheSameBytes) {
  const auto pairs = matched({"a", "▁cat", "dog", "学"}, {"学", "cat", "b", "▁cat", "a"});
  EXPECT_EQ(pairs.teacher, (TokenIds{0, 3, 4}));
  EXPECT_EQ(pairs.student, (TokenIds{3, 1, 0}));
}

// "A" is what a text has, though <0x41> has the lower id; a byte that no token is spelled with
// matches as it is.
TEST(MatchedTokens, AreTheLowestThatATextHas) {
  const auto pairs = matched({"<0x41>", "<0xFF>", "A", "▁"}, {"▁", "A", "<0xFF>", "<0x20>"});
  EXPECT_EQ(pairs.teacher, (TokenIds{0, 1, 2}));
  EXPECT_EQ(pairs.student, (TokenIds{3, 2, 1}));
}

TEST(MatchedTokens, ThatAreSpecialHaveTheSameUse) {
  const std::vector<std::string> student{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "a"};
  const std::vector<std::string> teacher{"a", "<|eot|>", "<|begin|>", "<|im_start|>", "<|pad|>"};
  const auto pairs =
      matched(student, teacher, R"({"eos_token":"<|im_end|>","pad_token":"<|endoftext|>"})",
              R"({"eos_token":"<|eot|>","bos_token":"<|begin|>","pad_token":"<|pad|>"})");
  EXPECT_EQ(pairs.teacher, (TokenIds{0, 1, 4}));
  EXPECT_EQ(pairs.student, (TokenIds{3, 2, 0}));
}

// The teacher pads with its eos, which is matched already.
TEST(MatchedTokens, HaveEachIdOnce) {
  const auto pairs = matched({"<|eos|>", "<|pad|>"}, {"<|end|>", "<|pad|>"},
                             R"({"eos_token":"<|eos|>","pad_token":"<|pad|>"})",
                             R"({"eos_token":"<|end|>","pad_token":"<|end|>"})");
  EXPECT_EQ(pairs.teacher, (TokenIds{0}));
  EXPECT_EQ(pairs.student, (TokenIds{0}));
}

}  // namespace
}  // namespace retort::recipes
