// Small arithmetic word problems with a checkable answer: the demo's training and test data, made
// instead of downloaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace retort::data {

struct ArithmeticProblem {
  std::string prompt;  // "Mia has 12 apples and buys 7 more. How many apples does Mia have?"
  // " 12 + 7 = 19 #### 19"; begins with a space, so that every number follows one
  std::string completion;
  // " 12 + 7 = 20 #### 20": the same working with one plausible mistake, carried to the end
  std::string rejected;
  std::string answer;  // "19", from 1 to 99
};

// Problem `index` of the fixed sequence that `seed` selects, 0 <= index <
// num_arithmetic_problems(). One and two steps of + - x; the six kinds take turns. No two indices
// give the same prompt (each kind walks a permutation of all its problems), so disjoint index
// ranges of one seed are disjoint sets: train on [0, n), test on [n, n + m). The mistake in
// `rejected` is a result that is off by one or ten, or that of another operation, in either step;
// the wrong answer, too, is from 1 to 99. kInvalidArgument outside the range.
ArithmeticProblem arithmetic_problem(int64_t index, uint64_t seed);
int64_t num_arithmetic_problems();

// kProblems: {"prompt", "completion", "answer"}. kPreferences: {"prompt", "chosen", "rejected"}.
enum class ArithmeticRows { kProblems, kPreferences };

struct ArithmeticOptions {
  ArithmeticRows rows = ArithmeticRows::kProblems;
  // So many of a hundred kProblems rows of each kind have `rejected` as their completion, spread
  // evenly over the indices; which ones does not depend on the seed. `answer` stays right. 0 to
  // 100; 0 with kPreferences.
  int mistakes_percent = 0;
};

// Writes a row for each of the problems [first, first + count) as JSONL, atomically. The same
// arguments give the same bytes. kInvalidArgument outside the ranges; errors of writing as
// base/file.h.
void write_arithmetic_problems(const std::filesystem::path& file, int64_t first, int64_t count,
                               uint64_t seed, const ArithmeticOptions& options = {});

}  // namespace retort::data
