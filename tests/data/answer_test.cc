#include "recipes/data/answer.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace retort::data {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Both ways round: it is the same whose answer is the reference.
void expect_same(const Pairs& pairs) {
  for (const auto& [a, b] : pairs) {
    EXPECT_TRUE(same_answer(a, b)) << a << " against " << b;
    EXPECT_TRUE(same_answer(b, a)) << b << " against " << a;
  }
}
void expect_different(const Pairs& pairs) {
  for (const auto& [a, b] : pairs) {
    EXPECT_FALSE(same_answer(a, b)) << a << " against " << b;
    EXPECT_FALSE(same_answer(b, a)) << b << " against " << a;
  }
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i)
    result += text;
  return result;
}

TEST(Answer, StandsBehindTheMarkOrInABoxOrLast) {
  expect_same({{" 12 + 7 = 19 #### 19", "19"},
               {"#### 19 apples, not 20", "19"},
               {"#### 1\n#### 2", "2"},
               {"####42", "42"},
               {"####\n42", "42"},
               {"#### The answer is 5", "5"},
               {"#### \\boxed{42}", "42"},
               {"#### Step 2: add\n2+3=5, so \\boxed{5}", "5"},
               {"so \\boxed{42}. Check: 6 * 7", "42"},
               {"\\boxed{1} and then \\boxed{x = 2}", "2"},
               {"\\boxed{3} #### 4", "4"},
               {"3 and 4 make 7.", "7"},
               {"There are 5 grams of CO2", "5"},
               {"(the answer is 5)", "5"},
               {"B) 5", "5"},
               {"The answer is **42**.", "42"},
               {"| 42 |", "42"},
               {"It is 42!", "42"},
               {"answer \u2192 5", "5"},
               {"\u7b54\u6848\u662f42\u4e2a", "42"}});

  // A mark or a box without a number is no answer, whatever stands before it.
  expect_different({{"12 #### none", "12"}, {"\\boxed{}", "5"}, {"#### 12", "120"}});
  EXPECT_FALSE(has_answer("12 #### none"));
  EXPECT_FALSE(has_answer(""));
  EXPECT_FALSE(has_answer("no number"));
  EXPECT_FALSE(same_answer("", "")) << "two missing answers do not agree";
  EXPECT_FALSE(same_answer("none", "none"));
}

TEST(Answer, OfACutTextIsNone) {
  for (const char* text : {"\\boxed{42", "\\boxed{\\frac{1}{2}", "\\boxed{4} then \\boxed{42",
                           "#### \\boxed{4", "\\boxed{"}) {
    EXPECT_FALSE(has_answer(text)) << text;
    EXPECT_FALSE(same_answer(text, text)) << text;
  }
  expect_different({{"\\boxed{42", "42"}, {"\\frac{3}{4", "4"}, {"it is (1, 2", "(1, 2)"}});
}

TEST(Answer, NumbersHaveTheirSigns) {
  expect_same({{"\u22125", "-5"},
               {"\u2013 7", "-7"},
               {"it lost -$5", "-5"},
               {"$-5$", "-5"},
               {"negative 5", "-5"},
               {"+42", "42"},
               {"-0.0", "0"},
               {"20 - 25 = -5", "-5"}});
  expect_different({{"\u22125", "5"}, {"\u2013 7", "7"}, {"\\pm 5", "5"}, {"\u00b15", "5"}});
}

TEST(Answer, ABulletIsNoSign) {
  expect_same({{"The answers:\n- 7", "7"},
               {"- 7\n\nThat is all.", "7"},
               {"Steps\n  - 3 and 4\n  - 7\n", "7"},
               {"Steps\r\n- 7\r\n", "7"},
               {"The answer:\n\u2013 7", "7"},
               {"The answer:\n- -7", "-7"},
               {"- 5\n- 6", "6"}});
  // Without a space, in one line, behind a mark, in a box or in a formula that goes on it is one.
  expect_same({{"The answer:\n-7", "-7"},
               {"- 7", "-7"},
               {"\n- 7\n", "-7"},
               {"The answer:\n\u2212 7", "-7"},
               {"It is\n#### - 7\nsays he", "-7"},
               {"It is\n\\boxed{- 7}", "-7"},
               {"x =\n- 7", "-7"},
               {"$$\n- 7\n$$", "-7"},
               {"20 - 27 = - 7\nas said", "-7"}});
}

TEST(Answer, DigitsAreReadAsANumberIsWritten) {
  for (const char* text : {"42", "042", "42.0", "42.", "4 then 42.00", "42,", "\uff14\uff12",
                           "\u0664\u0662", "$42$", "`42`", "\\text{42}", "4.2e1", "420E-1"})
    EXPECT_TRUE(same_answer(text, "42")) << text;
  expect_same({{"0.50", ".5"},
               {"000", "0"},
               {"1,000,000", "1000000"},
               {"1{,}234", "1234"},
               {"12,\\!345", "12345"},
               {"3\\,000", "3000"},
               {"1\u202f234", "1234"},
               {"#### $1,234.50.", "1234.5"},
               {"1.5e3", "1500"},
               {"1.5 \\times 10^3", "1500"},
               {"1.5 \u00d7 10\u00b3", "1500"},
               {"123456789012345678901234567890", "123,456,789,012,345,678,901,234,567,890"}});
  expect_different({{"1.5e3", "2.5e3"},
                    {"1,23", "23"},
                    {"1,234,56", "56"},
                    {"1 234", "234"},
                    {"(1,234)", "(5,234)"},
                    {"1.2.3", "2.3"},
                    {"0.333...", "0.333"},
                    {"123456789012345678901234567890", "123456789012345678901234567891"}});
}

TEST(Answer, FractionsPowersAndRootsAreExact) {
  expect_same({{"3/4", "0.75"},
               {"#### 3/4 cups", "0.75"},
               {"\\boxed{-\\frac{1}{2}}", "-0.5"},
               {"\\dfrac{10}{4}", "2.5"},
               {"\\tfrac34", "0.75"},
               {"2/6", "1/3"},
               {"3 1/2", "3.5"},
               {"-3\\frac{1}{2}", "-3.5"},
               {"3\u00bd", "7/2"},
               {"10^6", "1,000,000"},
               {"10^{-2}", "0.01"},
               {"10\u2076", "1000000"},
               {"2**3", "8"},
               {"-3^2", "-9"},
               {"(-3)^2", "9"},
               {"3 \\cdot 4", "3 \\times 4"},
               {"3 times 4", "(4)(3)"},
               {"3 * 2^2", "2 * 6"},
               {"\\sqrt{16}", "4"},
               {"2\\sqrt{3}", "\\sqrt{12}"},
               {"\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"},
               {"\\boxed{2\\pi}", "2\u03c0"}});

  // Other values, and what only looks like a number that it ends with.
  expect_different({{"3/4", "1/4"},
                    {"#### 3/4", "3/5"},
                    {"1/3", "0.3333333333"},
                    {"10^6", "5^6"},
                    {"3 1/2", "2 1/2"},
                    {"\\boxed{2\\sqrt{3}}", "\\boxed{3}"},
                    {"2\\pi", "3\\pi"},
                    {"5/0", "0"},
                    {"2^3^2", "2"},
                    {"6/2*3", "9"},
                    {"1/2/2020", "2020"},
                    {"0.\\overline{3}", "3"},
                    {"\\binom{5}{2}", "2"},
                    {"log(5)", "5"},
                    {"101_2", "2"}});
}

// A model that learns by this reward would else write the question down again.
TEST(Answer, WorkThatIsLeftIsNoAnswer) {
  const std::pair<const char*, const char*> questions[] = {
      // The question itself is repeated, as a formula, in the call of a tool or in other signs.
      {"771 * 9725", "7497975"},
      {"{\"expression\": \"771 * 9725\"}}", "7497975"},
      {"771**1 * 9725", "7497975"},
      {"(771)(9725)", "7497975"},
      {"What is 771 times 9725? 771 * 9725", "7497975"},

      // A mark, a box or a name in front does not do the work.
      {"#### 6 * 7", "42"},
      {"\\boxed{6 \\times 7}", "42"},
      {"x = 6(7)", "42"},

      // A power is one number, but its product is left.
      {"2 * 3^2", "18"},
      {"(3^5)(2)", "486"},

      // A fraction that is a whole number has to be divided yet.
      {"84/12", "7"},
      {"\\boxed{\\frac{84}{12}}", "7"},
      {"0 84/12", "7"},
      {"84/2", "(42 m/s)"},

      // One part of several is enough, wherever it stands.
      {"(6 * 7, 1)", "(42, 1)"},
      {"(6 * 7, 2 * 3)", "(42, 2 * 3)"},
      {"\\{84/12, 3\\}", "\\{3, 7\\}"},
      {"[84/12, \\infty)", "[7, \\infty)"},
      {"3:12/2", "3:6"},

      // Behind a number that is not equal, a formula explains nothing: it is the answer.
      {"41 = 6 * 7", "42"},
      {"41 = 6 * 7", "41"},
  };
  for (const auto& [completion, reference] : questions) {
    EXPECT_FALSE(same_answer(completion, reference)) << completion;
    EXPECT_EQ(compare_answers(completion, reference), Agreement::kDifferent) << completion;
  }
}

TEST(Answer, ProductsAndFractionsAreComparedWhereNothingIsLeft) {
  // The same text leaves nothing that its reference does not leave.
  for (const char* text : {"6 * 7", "1/1", "\\frac{5}{1}", "2^3 * 3", "2\\sqrt{3}", "3 1/2"})
    EXPECT_TRUE(same_answer(text, text)) << text;

  const std::pair<const char*, const char*> answers[] = {
      // The reference leaves work of this kind as well.
      {"6 * 7", "2 * 21"},
      {"2 * 3 * 7", "42 = 2 * 3 * 7"},
      {"84/12", "14/2"},

      // A fraction of two numbers is how one writes it, and needs no lowest terms.
      {"12/16", "3/4"},
      {"3/4", "0.75"},
      {"5/1", "5"},
      {"\\frac71", "7"},

      // A power of ten is how one writes a large number.
      {"3 \\times 10^8", "300000000"},
      {"3(10^8)", "300000000"},
      {"(10^8) * 3", "300000000"},

      // A root has no shorter writing than a factor with it.
      {"2(\\sqrt{3})", "2\\sqrt{3}"},
      {"\\frac{\\sqrt{3}}{2} \\cdot 5", "\\frac{5\\sqrt{3}}{2}"},

      // A million and a unit are read with the number before them, and leave nothing.
      {"5 million", "5000000"},
      {"\\boxed{2\\frac{1}{2} \\text{ million}}", "2500000"},
      {"1/2 million", "0.5 million"},
      {"\\boxed{(60 \\text{ km/h})}", "60"},

      // The work is done where its value stands behind it.
      {"6 * 7 = 42", "42"},

      // A formula behind an answer explains it, where it has the same value.
      {"x = 42 = 6 * 7", "42"},
      {"42 = 6 * 7 = 2 * 21", "42"},
      {"That is 7 = 84/12.", "7"},
      {"\\boxed{42 = 6 \\cdot 7}", "42"},
      {"#### 42 = 6 * 7", "42"},

      // So does one behind words, a dash, a line break or a unit.
      {"The answer is 42, i.e. 6 * 7.", "42"},
      {"The answer is 42 (which is 6 \u00d7 7).", "42"},
      {"x = 42\nCheck: 6 * 7", "42"},
      {"42 - that is, 6 * 7", "42"},
      {"\\boxed{42 \\\\ = 6 \\cdot 7}", "42"},
      {"42 dollars = 6 * 7 dollars", "42"},
  };
  for (const auto& [completion, reference] : answers)
    EXPECT_TRUE(same_answer(completion, reference)) << completion << " of " << reference;
}

TEST(Answer, UnitsAreLeftOut) {
  expect_same({{"50%", "50"},
               {"50\\%", "50 percent"},
               {"\\$5", "5"},
               {"\u20ac5", "\u00a35"},
               {"$5/hour", "5"},
               {"60 km/h", "60"},
               {"60 m/s^2", "60"},
               {"12 cm^2", "12 m\u00b2"},
               {"\\boxed{12,\\!345\\,\\text{m}^{2}}", "12345"},
               {"90^\\circ", "90\u00b0"},
               {"5-year-old", "5"},
               {"3 times a day", "3"},
               {"5 million dollars", "5,000,000"}});
  expect_different({{"5 million", "5"},
                    {"50%", "0.5"},
                    {"5x", "5"},
                    {"$5k", "5"},
                    {"5 squared", "5"},
                    {"5 and a half", "5"},
                    {"5 feet 3 inches", "3"},
                    {"5 cm x 7 cm", "7"},
                    {"10 to the power of 6", "6"},
                    {"the square root of 5", "5"},
                    {"10 is 20% of 50", "50"}});
}

TEST(Answer, SeveralNumbersInAShapeAreComparedOneByOne) {
  expect_same({{"(1,2)", "\\left( 1, 2 \\right)"},
               {"x = (1, 1/2)", "(1, 0.5)"},
               {"x \\in [1, 2)", "[1,2)"},
               {"\\boxed{(-\\infty, 3)}", "(-\u221e, 3)"},
               {"\\{1, 2\\}", "\\{2, 1\\}"},
               {"at 12:30", "12:30"},
               {"9 a.m.", "9am"},
               {"9 pm", "9"},
               {"3:4", "3 : 4"}});
  expect_different({{"(1, 2)", "(5, 2)"},
                    {"(1, 2)", "(2, 1)"},
                    {"(1, 2)", "2"},
                    {"(1; 2)", "(5; 2)"},
                    {"[1, 2)", "(1, 2]"},
                    {"\\{1, 1, 2\\}", "\\{1, 2, 2\\}"},
                    {"at 12:30", "at 11:30"},
                    {"9am", "9pm"},
                    {"1,2", "2"}});
}

TEST(Answer, OfSeveralCandidatesIsNone) {
  expect_different({{"x = 5 or x = 7", "7"},
                    {"#### 42 or 43", "42"},
                    {"#### 42 apples or 43", "42"},
                    {"\\boxed{5 \\text{ or } 7}", "7"},
                    {"x = 5, y = 7", "7"},
                    {"5 to 7", "7"},
                    {"5-10", "10-15"},
                    {"5-10", "-5"},
                    {"20-5", "15"},
                    {"3, 4, and 5", "5"},
                    {"3 out of 4", "1 out of 4"},
                    {"x > 5", "5"},
                    {"x <= 5", "5"},
                    {"2020-01-15", "15"}});
  // What is worked out says what it is.
  expect_same({{"12 + 7 = 19, 19 - 4 = 15", "15"},
               {"in 24 / 4 = 6 hours", "6"},
               {"He pays 5 * 7 = $<<5*7=35>>35.", "35"},
               {"5 = x", "5"}});
}

TEST(Answer, WithoutANumberIsComparedAsItIsWritten) {
  expect_same({{"\\boxed{x+3}", "\\boxed{x + 3}"},
               {"y+3", "so \\boxed{y+3}"},
               {"\\boxed{1+\\dfrac{\\sqrt{2}}{x}}", "\\boxed{1 + \\frac{\\sqrt{2}}{x}}"}});
  expect_different({{"\\boxed{x+3}", "\\boxed{y+3}"}, {"\\boxed{x+3}", "3"}, {"3+4i", "3+5i"}});
  EXPECT_FALSE(has_answer("It is 5 or 7.\nOr so.")) << "several lines are no answer as written";
  EXPECT_FALSE(has_answer("\\boxed{x}")) << "nor is what has no digits";
}

// No crash, no long time, and nothing equal by chance.
TEST(Answer, HostileTextsAreRefused) {
  const std::string refused[] = {
      repeated("{", 10'000) + "5" + repeated("}", 10'000),
      "\\boxed{" + repeated("{", 10'000) + "5" + repeated("}", 10'000) + "}",
      repeated("(", 20'000) + "5" + repeated(")", 20'000),
      repeated("\\sqrt", 10'000) + "5",
      repeated("\\frac{1}{", 10'000) + "5" + repeated("}", 10'000),
      repeated("\\text{", 20'000) + "5",
      repeated("\\boxed{", 30'000),
      repeated("9*", 20'000) + "9",
      repeated("1,", 20'000) + "1",
      repeated("-", 20'000) + "1"};
  for (const std::string& text : refused)
    EXPECT_FALSE(has_answer(text)) << text.substr(0, 20);

  // Too large to be read, so equal only to themselves.
  expect_different({{repeated("7", 50'000), repeated("7", 49'999) + "8"},
                    {"1e999999999", "1e999999998"},
                    {"9^999999", "9^999998"},
                    {"9^999^999", "9"}});
  // What is no UTF-8 may have been a digit.
  expect_different({{"4\xff", "4"},
                    {"4\xff"
                     "2",
                     "2"},
                    {"4\ufffd", "4"},
                    {"\xe2\x88 5", "5"}});
}

TEST(Answers, WhatNumbersDoNotDecideIsUnknown) {
  using enum Agreement;
  const struct {
    const char *completion, *reference;
    Agreement expected;
  } cases[] = {
      {"7", "7.0", kSame},       {"x+3 ", "x + 3", kSame},       {"7", "8", kDifferent},
      {"", "x", kDifferent},     {"\\boxed{7", "7", kDifferent}, {"x+3", "3+x", kUnknown},
      {"5 or 7", "7", kUnknown}, {"7", "x", kUnknown},           {"yes", "yes", kUnknown},
  };
  for (const auto& c : cases)
    EXPECT_EQ(compare_answers(c.completion, c.reference), c.expected) << c.completion;
}

TEST(Answers, TheTextOfAnAnswer) {
  const std::pair<const char*, const char*> cases[] = {
      {"so\nx = 3 \n\n", "x = 3"},
      {"1\n#### x+3 \nmore", "x+3"},
      {"#### 4 \\boxed{ \na\nb\n }.", "a\nb"},
      {"\\boxed{a", ""},
      {"\\boxed{ }", ""},
      {" \n", ""},
      {"####", ""},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(answer_text(text), expected) << text;
}

}  // namespace
}  // namespace retort::data
