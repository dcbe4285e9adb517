// The final answer of a worked solution, and whether two of them agree.
#pragma once

#include <string_view>

namespace retort::data {

// The answer of a text is the first formula behind the last "####"; without that mark what the last
// \boxed{...} holds; without that the last formula. docs/rewards.md says in full which numbers are
// read: signs, thousands separators, decimals, powers of ten, fractions, mixed numbers, powers,
// roots, pi, percent, units, tuples, intervals, sets, times. Their values are exact. An answer that
// was cut (a box without its end) is none.
//
// A box or a line that holds digits but no such number ("\boxed{x+3}") is an answer as it is
// written.

// True if the text has an answer.
bool has_answer(std::string_view text);

// True when both texts have an answer and it is the same: equal values, or, where neither can be
// read, the same writing but for spaces and what TeX only sets in another way. Never true for two
// texts of which only one can be read, nor where several numbers might be meant. Nor, and so it may
// be false the other way round, where the completion leaves work to its reader that the reference
// has done: "6 * 7" is no 42 and "84/12" no 7.
bool same_answer(std::string_view completion, std::string_view reference);

enum class Agreement {
  kSame,       // same_answer
  // two values that differ, equal ones of which the completion leaves work to do, or a completion
  // that is empty or was cut in its box
  kDifferent,
  kUnknown     // at least one of them cannot be read, which says nothing of what it means
};
Agreement compare_answers(std::string_view completion, std::string_view reference);

// The text in which the answer is looked for, for one that understands more than numbers: what the
// last \boxed{...} holds; else the rest of the line behind the last "####"; else the last line with
// anything in it. Without white space around it; "" where there is none.
std::string_view answer_text(std::string_view text);

}  // namespace retort::data
