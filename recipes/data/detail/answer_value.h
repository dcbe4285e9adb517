// The value of an answer: a number, or several in a shape.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recipes/data/detail/answer_tokens.h"
#include "recipes/data/detail/number.h"

namespace retort::data::detail {

// How a number is written: with digits, or as what somebody has to work out to have these.
enum class Written {
  kDigits,
  kProduct,   // "6 * 7", "6(7)"; not "3 * 10^8"
  kQuotient,  // "84/12", "\frac{84}{12}"; not "5/1", nor "1/2 million"
  kOther      // what is left: a power of ten with a factor or without, other powers, roots, pi
};

struct Value {
  Number number;             // of shape ""
  std::vector<Value> parts;  // of other shapes
  // "": a number; "()", "[)", ...: a tuple or an interval, "()" for a list without brackets too;
  // "{}": a set; ":": a time or a ratio
  std::string shape;
  std::string half_day;  // "am", "pm", or ""
  Written written = Written::kDigits;  // of shape ""
};

bool same_value(const Value& a, const Value& b);

// True if the two are the same and `value` leaves nothing to do that `wanted` has done: where a
// number of `wanted` is written with digits, that of `value` is no product, and no quotient unless
// `wanted` is no whole number ("3/4" of 0.75). Both are compared as they stand otherwise.
bool says_value(const Value& value, const Value& wanted);

struct ReadValue {
  Value value;
  size_t num_tokens = 0;  // how many of them it took
};

// The value that `tokens` begin with, and the units behind its numbers; nothing for what is no
// value. The grammar:
//   list    = item {"," item}
//   item    = "(" list ")" | "[" list ")" | ... | "\{" list "\}" | product {":" product}, [unit]
//   product = ["+" | "-"] factor {"*" factor | factor beginning with a root or pi or a bracket}
//             ["/" factor]; or a whole number and a fraction ("3 1/2")
//   factor  = atom ["^" a whole number]
//   atom    = digits | "{" product "}" | "(" product ")" | \frac | \sqrt | \pi | \infty
// Sums and differences are none: "20-5" may be a range, a score or 15.
std::optional<ReadValue> read_value(std::span<const Token> tokens);

// Words that join two numbers ("5 or 7", "3 out of 4"), so that neither is the answer.
bool joins_numbers(const Token& token);
// Words that make another number of the one before: "3 halves", "5 squared".
bool changes_number(const Token& token);

}  // namespace retort::data::detail
