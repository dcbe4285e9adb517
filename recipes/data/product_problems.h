// Products that a small model cannot work out and that one call of a calculator gives: data for
// models that call tools, made instead of downloaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace retort::data {

struct ProductProblem {
  std::string prompt;      // "What is 4821 times 317?"
  std::string expression;  // "4821 * 317", the numbers in the order of the prompt
  std::string answer;      // "1528257"
  std::string completion;  // "The answer is 1528257."
};

inline constexpr int kMinProductDigits = 2, kMaxProductDigits = 9;

// Problem `index` of the fixed sequence that `seed` selects, 0 <= index <
// num_product_problems(digits). One factor has so many `digits`, the other, which may come first,
// one fewer. No two indices give the same prompt, so disjoint index ranges of one seed are disjoint
// sets. kInvalidArgument outside the ranges.
ProductProblem product_problem(int64_t index, uint64_t seed, int digits);
int64_t num_product_problems(int digits);

// The schema of the tool that the rows call, a JSON object: `calculate` of
// share/environments/calculator.py, key by key as retort_env.py tells it to a chat template.
std::string_view calculator_schema();

// kCalls: {"messages", "tools", "answer"}, whole conversations to imitate: the question, a call of
// `calculate`, its result, the answer. kPrompts: {"messages", "answer"}, the question alone, with
// which an episode begins; its environment brings the tool.
enum class ProductRows { kCalls, kPrompts };

struct ProductOptions {
  ProductRows rows = ProductRows::kCalls;
  int digits = 4;  // kMinProductDigits to kMaxProductDigits
  // So many of a hundred kCalls rows have the call; the others have the tool, too, and are answered
  // at once, rightly. Spread evenly over the indices; which ones does not depend on the seed. 0 to
  // 100; 100 with kPrompts.
  int calls_percent = 100;
};

// Writes a row for each of the problems [first, first + count) as JSONL, atomically. The same
// arguments give the same bytes. kInvalidArgument outside the ranges; errors of writing as
// base/file.h.
void write_product_problems(const std::filesystem::path& file, int64_t first, int64_t count,
                            uint64_t seed, const ProductOptions& options = {});

}  // namespace retort::data
