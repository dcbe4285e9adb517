#include "recipes/data/product_problems.h"

#include <array>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "base/random.h"
#include "recipes/data/detail/problem_file.h"

namespace retort::data {
namespace {

// {a} and {b} are the factors, which the call names in this order, too: what it takes is to find
// them and to write them down.
constexpr std::array<std::string_view, 4> kQuestions{
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
    "What is the product of {a} and {b}?",
    "How many seats are there in {a} rows of {b}?",
};

// Tells this sequence from others of the same seed.
constexpr uint64_t kProductDraw = 0x70726f64;

constexpr std::string_view kSchema =
    R"({"type": "function", "function": {"name": "calculate", )"
    R"("description": "Evaluates an arithmetic expression exactly, with fractions of whole )"
    R"(numbers.", "parameters": {"type": "object", "properties": {"expression": )"
    R"({"type": "string", "description": "Numbers, parentheses and + - * / // % **, for )"
    R"(example \"(1 + 2) / 4\"."}}, "required": ["expression"]}, "return": {"type": )"
    R"("string", "description": "The result: a whole number, a decimal number where that )"
    R"(is exact, or a fraction."}}})";

void check_calls(const ProductOptions& options) {
  detail::check_share("calls", options.calls_percent);
  if (options.calls_percent < 100 && options.rows == ProductRows::kPrompts)
    throw Error(ErrorCode::kInvalidArgument,
                "rows of prompts have no calls; calls in a percentage of the rows are for whole "
                "conversations alone: leave one of the two out");
}

void check_digits(int digits) {
  if (digits < kMinProductDigits || digits > kMaxProductDigits)
    throw Error(ErrorCode::kInvalidArgument,
                "factors of " + std::to_string(digits) + " digits were asked for; expected " +
                    std::to_string(kMinProductDigits) + " to " + std::to_string(kMaxProductDigits));
}

uint64_t power_of_ten(int exponent) {
  uint64_t power = 1;
  for (int i = 0; i < exponent; ++i)
    power *= 10;
  return power;
}

// Numbers of so many digits, without a leading zero.
uint64_t num_numbers(int digits) { return 9 * power_of_ten(digits - 1); }

void put_factor(std::string& text, std::string_view slot, const std::string& factor) {
  text.replace(text.find(slot), slot.size(), factor);
}

// Those two make the messages of a row.
std::string said(std::string_view role, std::string_view content) {
  return JsonLine().add("role", role).add("content", content).str();
}

std::string called(std::string_view expression) {
  const std::string arguments = JsonLine().add("expression", expression).str();
  const std::string function =
      JsonLine().add("name", "calculate").raw("arguments", arguments).str();
  const std::string call = JsonLine().add("type", "function").raw("function", function).str();
  return JsonLine()
      .add("role", "assistant")
      .add("content", "")
      .raw("tool_calls", "[" + call + "]")
      .str();
}

std::string row_of(const ProductProblem& problem, ProductRows rows, bool with_call) {
  std::vector<std::string> messages{said("user", problem.prompt)};
  if (with_call) {
    messages.push_back(called(problem.expression));
    messages.push_back(JsonLine()
                           .add("role", "tool")
                           .add("name", "calculate")
                           .add("content", std::string_view(problem.answer))
                           .str());
  }
  if (rows == ProductRows::kCalls) messages.push_back(said("assistant", problem.completion));

  JsonLine row;
  row.raw("messages", json_array(messages, [](const std::string& message) { return message; }));
  if (rows == ProductRows::kCalls) row.raw("tools", "[" + std::string(kSchema) + "]");
  return row.add("answer", std::string_view(problem.answer)).str();
}

}  // namespace

std::string_view calculator_schema() { return kSchema; }

int64_t num_product_problems(int digits) {
  check_digits(digits);
  const uint64_t pairs = num_numbers(digits) * num_numbers(digits - 1);
  return static_cast<int64_t>(2 * kQuestions.size() * pairs);  // either factor comes first
}

ProductProblem product_problem(int64_t index, uint64_t seed, int digits) {
  const int64_t size = num_product_problems(digits);
  detail::check_problem_range(index, 1, size);
  const Permutation order(static_cast<uint64_t>(size), seed, kProductDraw);
  uint64_t code = order(static_cast<uint64_t>(index));
  const auto digit = [&code](uint64_t base) {
    const uint64_t value = code % base;
    code /= base;
    return value;
  };

  // The digits of the code, in this order: question, which factor comes first, the factors.
  ProductProblem problem;
  problem.prompt = kQuestions[digit(kQuestions.size())];
  const bool longer_first = digit(2) == 0;
  const uint64_t longer = power_of_ten(digits - 1) + digit(num_numbers(digits));
  const uint64_t shorter = power_of_ten(digits - 2) + digit(num_numbers(digits - 1));

  const std::string a = std::to_string(longer_first ? longer : shorter);
  const std::string b = std::to_string(longer_first ? shorter : longer);
  put_factor(problem.prompt, "{a}", a);
  put_factor(problem.prompt, "{b}", b);
  problem.expression = a + " * " + b;
  problem.answer = std::to_string(longer * shorter);
  problem.completion = "The answer is " + problem.answer + ".";
  return problem;
}

void write_product_problems(const std::filesystem::path& file, int64_t first, int64_t count,
                            uint64_t seed, const ProductOptions& options) {
  check_calls(options);
  const int64_t size = num_product_problems(options.digits);
  detail::write_problem_file(file, first, count, size, [&](int64_t index) {
    const bool with_call = options.rows == ProductRows::kCalls &&
                           detail::is_in_share(index, options.calls_percent);
    return row_of(product_problem(index, seed, options.digits), options.rows, with_call);
  });
}

}  // namespace retort::data
