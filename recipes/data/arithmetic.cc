#include "recipes/data/arithmetic.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "base/random.h"
#include "recipes/data/detail/problem_file.h"

namespace retort::data {
namespace {

constexpr std::array<std::string_view, 20> kNames{
    "Tom", "Mia", "Ben",  "Ana",  "Sam", "Lea", "Max",  "Eva",  "Leo",  "Zoe",
    "Tim", "Kim", "Paul", "Rosa", "Jan", "Ida", "Omar", "Lily", "Hugo", "Nina"};
constexpr std::array<std::string_view, 20> kThings{
    "apples", "books", "coins",  "cards",   "pens",     "eggs",   "shells",
    "stamps", "balls", "stones", "cookies", "pears",    "beads",  "toys",
    "cups",   "nuts",  "plums",  "tickets", "stickers", "flowers"};

using Numbers = std::array<int, 3>;

// A kind of problem. In its phrases {N} is the name, {O} the things, and {a} {b} {c} are the
// numbers.
struct Kind {
  std::array<std::string_view, 3> phrases;
  char first_op;
  char second_op;     // 0: one step
  Numbers low, high;  // ranges of a, b, c; c is not used in one step
};

constexpr std::array<Kind, 6> kKinds{{
    // These take one step.
    {{"{N} has {a} {O} and buys {b} more. How many {O} does {N} have?",
      "{N} has {a} {O} and finds {b} more. How many {O} does {N} have now?",
      "There are {a} {O} in a box. {N} adds {b} {O}. How many {O} are there?"},
     '+',
     0,
     {2, 2, 0},
     {20, 20, 0}},
    {{"{N} has {a} {O} and gives away {b}. How many {O} are left?",
      "{N} had {a} {O} but lost {b}. How many {O} does {N} have now?",
      "There are {a} {O} in a box. {N} takes {b} {O}. How many {O} are there?"},
     '-',
     0,
     {5, 2, 0},
     {25, 20, 0}},
    {{"{N} has {a} bags with {b} {O} each. How many {O} does {N} have?",
      "{N} fills {a} boxes with {b} {O} each. How many {O} are there?",
      "{N} buys {b} {O} on each of {a} days. How many {O} does {N} have now?"},
     '*',
     0,
     {2, 2, 0},
     {9, 9, 0}},

    // These take two, and the second goes on from what the first has given.
    {{"{N} has {a} {O} and buys {b} more. Then {N} gives away {c}. How many {O} are left?",
      "{N} has {a} {O}, finds {b} more and loses {c}. How many {O} does {N} have now?",
      "There are {a} {O} in a box. {N} adds {b} {O} and takes {c} {O}. How many {O} are there?"},
     '+',
     '-',
     {2, 2, 2},
     {12, 12, 9}},
    {{"{N} has {a} bags with {b} {O} each and buys {c} more. How many {O} does {N} have?",
      "{N} fills {a} boxes with {b} {O} each and finds {c} more. How many {O} are there?",
      "{N} buys {b} {O} on each of {a} days, then gets {c} more. How many {O} does {N} have now?"},
     '*',
     '+',
     {2, 2, 2},
     {9, 9, 9}},
    {{"{N} has {a} bags with {b} {O} each and gives away {c}. How many {O} are left?",
      "{N} fills {a} boxes with {b} {O} each and takes {c} {O}. How many {O} are there?",
      "{N} buys {b} {O} on each of {a} days, then loses {c}. How many {O} does {N} have now?"},
     '*',
     '-',
     {2, 2, 2},
     {9, 9, 9}},
}};

int apply(char op, int a, int b) { return op == '+' ? a + b : op == '-' ? a - b : a * b; }

struct Results {
  int middle = 0;
  int result = 0;  // equal to middle where there is one step
  bool in_range() const { return middle >= 1 && middle <= 99 && result >= 1 && result <= 99; }
};
// Returns the result when the first step gave `middle`, right or wrong.
int finish(const Kind& kind, int middle, int c) {
  return kind.second_op ? apply(kind.second_op, middle, c) : middle;
}
Results solve(const Kind& kind, const Numbers& n) {
  const int middle = apply(kind.first_op, n[0], n[1]);
  return {middle, finish(kind, middle, n[2])};
}

// Returns every choice of numbers of a kind whose results stay between 1 and 99.
std::vector<Numbers> choices(const Kind& kind) {
  std::vector<Numbers> all;
  for (int a = kind.low[0]; a <= kind.high[0]; ++a)
    for (int b = kind.low[1]; b <= kind.high[1]; ++b)
      for (int c = kind.low[2]; c <= kind.high[2]; ++c) {
        if (solve(kind, {a, b, c}).in_range()) all.push_back({a, b, c});
      }
  return all;
}

// Returns what one mistake may make of a step whose right result is `right`.
std::vector<int> mistakes(char op, int a, int b, int right) {
  std::vector<int> wrong{right - 1, right + 1, right - 10, right + 10};
  for (const char other : {'+', '-', '*'})
    if (other != op) wrong.push_back(apply(other, a, b));
  return wrong;
}

// Returns one of all results of a single mistake, chosen by `bits`. There always is one: a mistake
// of 1 stays in the range at one end at least.
Results with_mistake(const Kind& kind, const Numbers& n, const Results& right, uint64_t bits) {
  // A mistake in the first step is carried on into the second, which is itself done right.
  std::vector<Results> all;
  for (const int middle : mistakes(kind.first_op, n[0], n[1], right.middle))
    all.push_back({middle, finish(kind, middle, n[2])});
  if (kind.second_op)
    for (const int result : mistakes(kind.second_op, right.middle, n[2], right.result))
      all.push_back({right.middle, result});

  // A mistake that comes to the right result would make the rejected solution a good one.
  std::erase_if(
      all, [&](const Results& wrong) { return !wrong.in_range() || wrong.result == right.result; });
  RETORT_CHECK(!all.empty()) << "a problem without a mistake";
  return all[bits % all.size()];
}

std::string working(const Kind& kind, const Numbers& n, const Results& results) {
  const auto step = [](int a, char op, int b, int result) {
    return std::to_string(a) + " " + op + " " + std::to_string(b) + " = " + std::to_string(result);
  };
  std::string text = " " + step(n[0], kind.first_op, n[1], results.middle);
  if (kind.second_op) text += ", " + step(results.middle, kind.second_op, n[2], results.result);
  return text + " #### " + std::to_string(results.result);
}

constexpr uint64_t kMistakeDraw = 0x6d697374;
constexpr uint64_t kSurfaces =
    kNames.size() * kThings.size() * std::tuple_size_v<decltype(Kind::phrases)>;

// The sequence of problems of one seed. It is made once for a file.
class Sequence {
 public:
  explicit Sequence(uint64_t seed) : seed_(seed) {
    for (size_t k = 0; k < kKinds.size(); ++k) {
      numbers_.push_back(choices(kKinds[k]));
      orders_.emplace_back(numbers_.back().size() * kSurfaces, seed, k);
    }
  }
  int64_t size() const {
    uint64_t smallest = orders_.front().size();
    for (const Permutation& order : orders_)
      smallest = std::min(smallest, order.size());
    return static_cast<int64_t>(smallest * kKinds.size());
  }
  ArithmeticProblem at(int64_t index) const;

 private:
  uint64_t seed_;
  std::vector<std::vector<Numbers>> numbers_;  // by kind
  std::vector<Permutation> orders_;            // by kind, over surfaces and numbers
};

void fill(std::string& text, std::string_view slot, std::string_view value) {
  for (size_t at = text.find(slot); at != std::string::npos;
       at = text.find(slot, at + value.size()))
    text.replace(at, slot.size(), value);
}

ArithmeticProblem Sequence::at(int64_t index) const {
  // Kinds take turns, and a permutation gives each problem of a kind once.
  const size_t k = static_cast<size_t>(index) % kKinds.size();
  const Kind& kind = kKinds[k];
  uint64_t code = orders_[k](static_cast<uint64_t>(index) / kKinds.size());
  const auto digit = [&code](uint64_t base) {
    const uint64_t value = code % base;
    code /= base;
    return static_cast<size_t>(value);
  };

  // The digits of the code, in this order: name, things, phrase, numbers.
  const std::string_view name = kNames[digit(kNames.size())];
  const std::string_view things = kThings[digit(kThings.size())];
  ArithmeticProblem problem{.prompt = std::string(kind.phrases[digit(kind.phrases.size())]),
                            .completion = {},
                            .rejected = {},
                            .answer = {}};
  const Numbers& numbers = numbers_[k][digit(numbers_[k].size())];
  fill(problem.prompt, "{N}", name);
  fill(problem.prompt, "{O}", things);
  fill(problem.prompt, "{a}", std::to_string(numbers[0]));
  fill(problem.prompt, "{b}", std::to_string(numbers[1]));
  fill(problem.prompt, "{c}", std::to_string(numbers[2]));

  // Every problem has its right working and one with a single mistake, whatever the file takes of
  // them: so the sequence is the same for all kinds of rows.
  const Results right = solve(kind, numbers);
  problem.answer = std::to_string(right.result);
  problem.completion = working(kind, numbers, right);
  const uint64_t bits = random_bits(seed_, kMistakeDraw, static_cast<uint64_t>(index));
  problem.rejected = working(kind, numbers, with_mistake(kind, numbers, right, bits));
  return problem;
}

void check_options(const ArithmeticOptions& options) {
  detail::check_share("mistakes", options.mistakes_percent);
  if (options.mistakes_percent > 0 && options.rows == ArithmeticRows::kPreferences)
    throw Error(ErrorCode::kInvalidArgument,
                "rows of preferences have one solution with a mistake each; mistakes in a "
                "percentage of the rows are for problems alone: leave one of the two out");
}

// Kinds take turns, so counting by kind gives each the same share.
bool has_mistake(int64_t index, int percent) {
  return detail::is_in_share(index / static_cast<int64_t>(kKinds.size()), percent);
}

}  // namespace

ArithmeticProblem arithmetic_problem(int64_t index, uint64_t seed) {
  const Sequence sequence(seed);
  detail::check_problem_range(index, 1, sequence.size());
  return sequence.at(index);
}

int64_t num_arithmetic_problems() { return Sequence(0).size(); }

void write_arithmetic_problems(const std::filesystem::path& file, int64_t first, int64_t count,
                               uint64_t seed, const ArithmeticOptions& options) {
  check_options(options);
  const Sequence sequence(seed);
  detail::write_problem_file(file, first, count, sequence.size(), [&](int64_t index) {
    const ArithmeticProblem problem = sequence.at(index);
    JsonLine line;
    line.add("prompt", std::string_view(problem.prompt));
    if (options.rows == ArithmeticRows::kProblems) {
      const bool wrong = has_mistake(index, options.mistakes_percent);
      line.add("completion", std::string_view(wrong ? problem.rejected : problem.completion))
          .add("answer", std::string_view(problem.answer));
    } else {
      line.add("chosen", std::string_view(problem.completion))
          .add("rejected", std::string_view(problem.rejected));
    }
    return line.str();
  });
}

}  // namespace retort::data
