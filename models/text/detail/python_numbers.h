// Numbers as Python's int() and float() read them, and as its `json` writes them. Private to
// models/text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace retort::models::detail {

// Python's limit, which keeps it from quadratic work.
inline constexpr size_t kMaxIntegerDigits = 4300;

// int(text): a sign, digits with single underscores between them, white space around. In JSON,
// whatever its size; none for what it refuses.
std::optional<std::string> python_int(std::string_view text);
// float(text), where that is finite.
std::optional<double> python_float(std::string_view text);
// An integer literal of a program: as int(), without sign, or in base 16, 8 or 2 up to 64 bits, and
// no zeros before others.
std::optional<std::string> python_integer_literal(std::string_view text);

// The shortest text that reads back as the same double, with a point or an e, as it is no integer.
std::string float_json(double value);
// int(value) of a whole number.
std::string whole_json(double value);

}  // namespace retort::models::detail
