// Values without quotes that one reader of YAML takes for a number or a boolean and another for
// text. Where a field has a type they are read by it or refused; here is what is done with those
// that have none (base/json_block.h).
#pragma once

#include <string>
#include <string_view>

namespace retort::launch {

// "" for a value that YAML 1.1, which PyYAML reads, and 1.2 take for the same; else what it is to
// whom and what to write instead. Left out is 1e3, a number in 1.2 and here, a text to PyYAML,
// which wants 1.0e+3.
// - yes, no, on, off, y, n in lower case, capitals or with a capital: booleans of 1.1, texts of 1.2
// - 1_000, 010, 0b11, 12:30: numbers of 1.1 (12:30 is 750), texts or other numbers of 1.2
// - .inf, .nan: numbers that JSON does not have
std::string why_ambiguous(std::string_view text);

// A number of YAML 1.2 as JSON writes it: .5, 5., +1, 0x1f and 0o17 as 0.5, 5.0, 1, 31 and 15. Any
// other text as it is.
std::string json_number_of_yaml(std::string_view text);

}  // namespace retort::launch
