// The final numeric answer of a worked solution, and whether two of them agree.
#pragma once

#include <string>
#include <string_view>

namespace retort::data {

// The first number after the last "####"; without that mark the last number in the last
// \boxed{...}; without that the last number of the text; "" if there is none. A box with a fraction
// or a root (\frac, \sqrt) has no answer that can be compared. The number is given in one canonical
// spelling: no thousands commas, no leading + or zeros, no trailing fractional zeros ("1,200.50" ->
// "1200.5", "-0" -> "0"). A minus that follows a digit, a letter or ")" is an operator, not a sign
// ("20-5" ends in 5). No exponents, no fractions.
std::string extract_answer(std::string_view text);

// True when both texts have an answer and it is the same number, exactly.
bool same_answer(std::string_view completion, std::string_view reference);

}  // namespace retort::data
