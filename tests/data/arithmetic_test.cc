#include "recipes/data/arithmetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/file.h"
#include "recipes/data/answer.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/sample.h"
#include "tests/data/word_tokenizer.h"

namespace retort::data {
namespace {

// Recomputes "12 + 7 = 19, 19 - 4 = 15" and checks every number of the working against the prompt.
void check_working(const ArithmeticProblem& problem) {
  std::istringstream words(problem.completion);
  int a = 0, b = 0, c = 0;
  char op = 0, equals = 0;
  std::string last;
  for (int step = 0; words >> a >> op >> b >> equals >> c; ++step) {
    ASSERT_EQ(equals, '=');
    EXPECT_EQ(c, op == '+' ? a + b : op == '-' ? a - b : a * b) << problem.completion;
    if (step == 0) {
      EXPECT_NE(problem.prompt.find(" " + std::to_string(a)), std::string::npos) << problem.prompt;
    } else {
      EXPECT_EQ(std::to_string(a), last) << problem.completion;
    }
    EXPECT_NE(problem.prompt.find(" " + std::to_string(b)), std::string::npos) << problem.prompt;
    last = std::to_string(c);
    if (words.peek() == ',') words.get();
  }
  EXPECT_EQ(last, problem.answer) << problem.completion;
  EXPECT_TRUE(problem.completion.ends_with(" #### " + problem.answer));
  const int answer = std::stoi(problem.answer);
  EXPECT_TRUE(answer >= 1 && answer <= 99) << answer;
}

TEST(Arithmetic, ProblemsAreRightAndDistinct) {
  std::set<std::string> prompts, answers, openings;
  for (int64_t i = 0; i < 6000; ++i) {
    const ArithmeticProblem problem = arithmetic_problem(i * 7, 42);
    check_working(problem);
    EXPECT_EQ(problem.prompt.find_first_of("{}"), std::string::npos) << problem.prompt;
    EXPECT_TRUE(problem.prompt.ends_with("?"));
    EXPECT_TRUE(same_answer(problem.completion, problem.answer));
    EXPECT_TRUE(prompts.insert(problem.prompt).second) << problem.prompt;
    answers.insert(problem.answer);
    EXPECT_LE(std::count(problem.prompt.begin(), problem.prompt.end(), ' '), 25) << problem.prompt;
    EXPECT_LE(std::count(problem.completion.begin(), problem.completion.end(), ' '), 15) << problem.completion;
  }
  EXPECT_GT(answers.size(), 70u);
}

TEST(Arithmetic, RangesOfOneSeedAreDisjoint) {
  const test::TempFolder folder;
  write_arithmetic_problems(folder.path() / "train.jsonl", 0, 3000, 5);
  write_arithmetic_problems(folder.path() / "test.jsonl", 3000, 500, 5);
  const JsonlFile train(folder.path() / "train.jsonl"), held_out(folder.path() / "test.jsonl");
  ASSERT_EQ(train.size(), 3000);
  ASSERT_EQ(held_out.size(), 500);
  std::set<std::string_view> seen;
  for (int64_t i = 0; i < train.size(); ++i) seen.insert(train.line(i));
  EXPECT_EQ(seen.size(), 3000u);
  for (int64_t i = 0; i < held_out.size(); ++i) EXPECT_FALSE(seen.contains(held_out.line(i))) << held_out.line(i);
}

TEST(Arithmetic, TheSameArgumentsGiveTheSameBytes) {
  const test::TempFolder folder;
  const auto content = [&](int64_t first, uint64_t seed) {
    write_arithmetic_problems(folder.path() / "f.jsonl", first, 50, seed);
    return read_file(folder.path() / "f.jsonl");
  };
  const std::string once = content(0, 1);
  EXPECT_EQ(content(0, 1), once);
  EXPECT_NE(content(0, 2), once);
  EXPECT_NE(content(50, 1), once);
}

TEST(Arithmetic, RowsAreReadAsSamplesAndPrompts) {
  const test::TempFolder folder;
  write_arithmetic_problems(folder.path() / "f.jsonl", 12, 1, 1);
  const JsonlFile file(folder.path() / "f.jsonl");
  const auto tokenizer = test::word_tokenizer(folder.path());
  const auto chat = test::chat_template();
  const Sample sample = make_sample(file.line(0), "f:1", {}, tokenizer, chat, {});
  const ArithmeticProblem problem = arithmetic_problem(12, 1);
  ASSERT_EQ(sample.fields.size(), 1u);
  EXPECT_EQ(sample.fields[0], (std::pair<std::string, std::string>{"answer", problem.answer}));
  EXPECT_EQ(make_prompt(file.line(0), "f:1", {}, tokenizer, chat).prompt_text, problem.prompt);
}

TEST(Arithmetic, RangeIsChecked) {
  const int64_t size = num_arithmetic_problems();
  EXPECT_GT(size, 100000);
  EXPECT_NO_THROW(arithmetic_problem(size - 1, 1));
  EXPECT_NE(test::invalid_argument([&] { arithmetic_problem(size, 1); }), "");
  EXPECT_NE(test::invalid_argument([&] { arithmetic_problem(-1, 1); }), "");
  const test::TempFolder folder;
  EXPECT_NE(test::invalid_argument([&] { write_arithmetic_problems(folder.path() / "f", size - 1, 2, 1); }), "");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "f"));
}

// Each kind walks a permutation of its whole space: the last problem of all is as distinct as the first.
TEST(Arithmetic, AllProblemsAreDistinct) {
  const test::TempFolder folder;
  const int64_t size = num_arithmetic_problems();
  write_arithmetic_problems(folder.path() / "all.jsonl", 0, size, 3);
  const JsonlFile file(folder.path() / "all.jsonl");
  ASSERT_EQ(file.size(), size);
  std::vector<std::string_view> lines;
  for (int64_t i = 0; i < size; ++i) lines.push_back(file.line(i));
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(std::adjacent_find(lines.begin(), lines.end()), lines.end());
}

}  // namespace
}  // namespace retort::data
