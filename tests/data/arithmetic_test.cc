#include "recipes/data/arithmetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "base/file.h"
#include "recipes/data/answer.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/preference.h"
#include "recipes/data/sample.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

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
    EXPECT_LE(std::count(problem.completion.begin(), problem.completion.end(), ' '), 15)
        << problem.completion;
  }
  EXPECT_GT(answers.size(), 70u);
}

TEST(Arithmetic, RangesOfOneSeedAreDisjoint) {
  const test::TemporaryFolder folder;
  write_arithmetic_problems(folder.path() / "train.jsonl", 0, 3000, 5);
  write_arithmetic_problems(folder.path() / "test.jsonl", 3000, 500, 5);
  const JsonlFile train(folder.path() / "train.jsonl"), held_out(folder.path() / "test.jsonl");
  ASSERT_EQ(train.size(), 3000);
  ASSERT_EQ(held_out.size(), 500);
  std::set<std::string_view> seen;
  for (int64_t i = 0; i < train.size(); ++i)
    seen.insert(train.line(i));
  EXPECT_EQ(seen.size(), 3000u);
  for (int64_t i = 0; i < held_out.size(); ++i)
    EXPECT_FALSE(seen.contains(held_out.line(i))) << held_out.line(i);
}

TEST(Arithmetic, TheSameArgumentsGiveTheSameBytes) {
  const test::TemporaryFolder folder;
  const auto content = [&](int64_t first, uint64_t seed) {
    write_arithmetic_problems(folder.path() / "f.jsonl", first, 50, seed);
    return read_file(folder.path() / "f.jsonl");
  };
  const std::string once = content(0, 1);
  EXPECT_EQ(content(0, 1), once);
  EXPECT_NE(content(0, 2), once);
  EXPECT_NE(content(50, 1), once);
}

// The numbers of " 12 + 7 = 20, 20 - 4 = 16 #### 16".
std::vector<int> numbers_of(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < '0' || c > '9'; }, ' ');
  std::istringstream words(text);
  return {std::istream_iterator<int>(words), {}};
}

// One step is wrong in one of the promised ways, the others follow from it, and all else is the
// right solution's text.
TEST(Arithmetic, ARejectedSolutionHasOneMistake) {
  std::map<int, int> kinds;  // wrong - right -> times
  int in_first_step = 0;
  for (int64_t i = 0; i < 6000; ++i) {
    const ArithmeticProblem problem = arithmetic_problem(i * 11, 7);
    const std::string& right = problem.completion;
    const std::string& wrong = problem.rejected;
    EXPECT_FALSE(same_answer(wrong, problem.answer)) << wrong;
    const std::vector<int> r = numbers_of(right);
    const std::vector<int> w = numbers_of(wrong);
    ASSERT_EQ(w.size(), r.size()) << right << " against " << wrong;

    // The text is the same, and the answer is the last result.
    const auto without_digits = [](std::string text) {
      std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
      return text;
    };
    EXPECT_EQ(without_digits(wrong), without_digits(right));
    EXPECT_EQ(w.back(), w[w.size() - 2]);
    EXPECT_TRUE(w.back() >= 1 && w.back() <= 99) << wrong;
    EXPECT_TRUE(w[0] == r[0] && w[1] == r[1]) << wrong;

    // A mistake in the first step goes on into the second, which every kind adds or subtracts in.
    const bool two_steps = w.size() == 7;
    const size_t step = !two_steps || w[2] != r[2] ? 0 : 3;
    if (two_steps) {
      EXPECT_EQ(w[3], w[2]) << wrong;
      EXPECT_EQ(w[4], r[4]) << wrong;
      if (step == 0) {
        ++in_first_step;
        EXPECT_EQ(w[5] - w[2], r[5] - r[2]) << wrong;
      }
    }

    // The step is off by one or ten, or is that of another operation.
    const int a = w[step];
    const int b = w[step + 1];
    const int mistake = w[step + 2] - r[step + 2];
    const bool other_operation =
        w[step + 2] == a + b || w[step + 2] == a - b || w[step + 2] == a * b;
    EXPECT_TRUE(std::abs(mistake) == 1 || std::abs(mistake) == 10 || other_operation) << wrong;
    ++kinds[std::abs(mistake) == 1 || std::abs(mistake) == 10 ? mistake : 0];
  }
  for (const int kind : {-10, -1, 0, 1, 10})
    EXPECT_GT(kinds[kind], 300) << kind;
  EXPECT_GT(in_first_step, 500);
}

TEST(Arithmetic, PreferencesAreTheProblemsAsPairs) {
  const test::TemporaryFolder folder;
  const auto content = [&](int64_t first, uint64_t seed) {
    write_arithmetic_problems(folder.path() / "f.jsonl", first, 50, seed,
                              {.rows = ArithmeticRows::kPreferences});
    return read_file(folder.path() / "f.jsonl");
  };
  const std::string once = content(0, 1);
  EXPECT_EQ(content(0, 1), once);
  EXPECT_NE(content(0, 2), once);
  content(12, 1);
  const JsonlFile file(folder.path() / "f.jsonl");
  const ArithmeticProblem problem = arithmetic_problem(12, 1);
  EXPECT_EQ(file.line(0), "{\"prompt\": \"" + problem.prompt + "\", \"chosen\": \"" +
                              problem.completion + "\", \"rejected\": \"" + problem.rejected +
                              "\"}");
  const auto tokenizer = test::word_tokenizer(folder.path());
  const PreferenceSample pair =
      make_preference(file.line(0), "f:1", {}, tokenizer, test::chat_template(), 1024);
  // the same words but for the numbers
  EXPECT_EQ(pair.chosen_ids.size(), pair.rejected_ids.size());
}

// Of each kind the same share of rows has the wrong solution, beside the right answer.
TEST(Arithmetic, AShareOfTheRowsHasAMistake) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "f.jsonl";
  for (const int percent : {0, 1, 30, 99, 100}) {
    write_arithmetic_problems(path, 1200, 600, 1, {.mistakes_percent = percent});
    const JsonlFile file(path);
    ASSERT_EQ(file.size(), 600);

    std::map<int64_t, int> wrong;  // kind -> rows
    for (int64_t i = 0; i < file.size(); ++i) {
      const ArithmeticProblem problem = arithmetic_problem(1200 + i, 1);
      const auto line = [&](const std::string& completion) {
        return "{\"prompt\": \"" + problem.prompt + "\", \"completion\": \"" + completion +
               "\", \"answer\": \"" + problem.answer + "\"}";
      };
      const bool mistake = file.line(i) == line(problem.rejected);
      EXPECT_TRUE(mistake || file.line(i) == line(problem.completion)) << file.line(i);
      wrong[i % 6] += mistake;
    }
    for (int64_t kind = 0; kind < 6; ++kind)
      EXPECT_EQ(wrong[kind], percent) << "percent, of kind " << kind;
  }

  const auto refusal = [&](const ArithmeticOptions& options) {
    return test::message_of([&] { write_arithmetic_problems(path, 0, 6, 1, options); });
  };
  EXPECT_NE(refusal({.mistakes_percent = 101}).find("expected 0 to 100"), std::string::npos);
  EXPECT_NE(refusal({.mistakes_percent = -1}).find("expected 0 to 100"), std::string::npos);
  const std::string of_pairs =
      refusal({.rows = ArithmeticRows::kPreferences, .mistakes_percent = 30});
  EXPECT_NE(of_pairs.find("leave one of the two out"), std::string::npos) << of_pairs;
}

TEST(Arithmetic, RowsAreReadAsSamplesAndPrompts) {
  const test::TemporaryFolder folder;
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
  EXPECT_NE(test::message_of([&] { arithmetic_problem(size, 1); }), "");
  EXPECT_NE(test::message_of([&] { arithmetic_problem(-1, 1); }), "");
  const test::TemporaryFolder folder;
  EXPECT_NE(
      test::message_of([&] { write_arithmetic_problems(folder.path() / "f", size - 1, 2, 1); }),
      "");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "f"));
}

// Each kind walks a permutation of its whole space: the last problem of all is as distinct as the
// first.
TEST(Arithmetic, AllProblemsAreDistinct) {
  const test::TemporaryFolder folder;
  const int64_t size = num_arithmetic_problems();
  write_arithmetic_problems(folder.path() / "all.jsonl", 0, size, 3);
  const JsonlFile file(folder.path() / "all.jsonl");
  ASSERT_EQ(file.size(), size);
  std::vector<std::string_view> lines;
  for (int64_t i = 0; i < size; ++i)
    lines.push_back(file.line(i));
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(std::adjacent_find(lines.begin(), lines.end()), lines.end());
}

}  // namespace
}  // namespace retort::data
