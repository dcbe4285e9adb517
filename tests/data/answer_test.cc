#include "recipes/data/answer.h"

#include <gtest/gtest.h>

namespace retort::data {
namespace {

TEST(Answer, AfterTheMark) {
  EXPECT_EQ(extract_answer(" 12 + 7 = 19 #### 19"), "19");
  EXPECT_EQ(extract_answer("#### 19 apples, not 20"), "19");
  EXPECT_EQ(extract_answer("#### 1\n#### 2"), "2");
  EXPECT_EQ(extract_answer("12 #### none"), "") << "the mark without a number is no answer";
  EXPECT_EQ(extract_answer("####42"), "42");
  EXPECT_EQ(extract_answer("#### $1,234.50."), "1234.5");
}

TEST(Answer, LastNumberWithoutTheMark) {
  EXPECT_EQ(extract_answer("3 and 4 make 7."), "7");
  EXPECT_EQ(extract_answer("no number"), "");
  EXPECT_EQ(extract_answer(""), "");
  EXPECT_EQ(extract_answer("20-5"), "5");
  EXPECT_EQ(extract_answer("20 - 25 = -5"), "-5");
  EXPECT_EQ(extract_answer("it lost -$5"), "-5");
}

TEST(Answer, CanonicalSpelling) {
  for (const char* text : {"42", "042", "+42", "42.0", "42.", "4 then 42.00", "42,"})
    EXPECT_EQ(extract_answer(text), "42") << text;
  EXPECT_EQ(extract_answer("0.50"), "0.5");
  EXPECT_EQ(extract_answer(".5"), "0.5");
  EXPECT_EQ(extract_answer("-0.0"), "0");
  EXPECT_EQ(extract_answer("000"), "0");
  EXPECT_EQ(extract_answer("1,000,000"), "1000000");
  EXPECT_EQ(extract_answer("1,2"), "2") << "a list, not a thousands comma";
  EXPECT_EQ(extract_answer("123456789012345678901234567890"), "123456789012345678901234567890");
}

TEST(Answer, BoxedNumbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"so \\boxed{42}. Check: 6 * 7", "42"},
      {"\\boxed{1} and then \\boxed{x = 2}", "2"},
      {"$\\boxed{12{,}345}$", "12345"},
      // a unit with an exponent: the last number counts, so say it without
      {"\\boxed{12,\\!345\\,\\text{m}^{2}}", "2"},
      {"\\boxed{\\text{the answer is } -3.50}", "-3.5"},
      {"\\boxed{\\$1,200}", "1200"},
      {"\\boxed{7", "7"},
      {"\\boxed{}", ""},
      {"\\boxed{\\frac{1}{2}}", ""},
      {"5 \\boxed{2\\sqrt{3}}", ""},
      {"\\boxed{3} #### 4", "4"},
  };
  for (const auto& [text, number] : cases)
    EXPECT_EQ(extract_answer(text), number) << text;
}

TEST(Answer, SameNumber) {
  EXPECT_TRUE(same_answer("so 1,200 #### 1200.0", "1200"));
  EXPECT_FALSE(same_answer("#### 12", "120"));
  EXPECT_FALSE(same_answer("", "")) << "two missing answers do not agree";
  EXPECT_FALSE(same_answer("none", "5"));
}

}  // namespace
}  // namespace retort::data
