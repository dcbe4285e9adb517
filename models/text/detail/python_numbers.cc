#include "models/text/detail/python_numbers.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "base/json_text.h"
#include "models/text/detail/said_values.h"

namespace retort::models::detail {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Moves the digits at the beginning of `text` to `to`, without underscores, which may stand between
// two of them. How many there were.
size_t take_digits(std::string_view& text, std::string& to) {
  size_t count = 0;
  while (!text.empty()) {
    if (is_digit(text[0])) {
      to += text[0];
      ++count;
    } else if (text[0] != '_' || count == 0 || text.size() == 1 || !is_digit(text[1])) {
      break;
    }
    text.remove_prefix(1);
  }
  return count;
}

// Moves a sign to `to`, a plus to nowhere.
void take_sign(std::string_view& text, std::string& to) {
  if (text.empty() || (text[0] != '-' && text[0] != '+')) return;
  if (text[0] == '-') to += '-';
  text.remove_prefix(1);
}

}  // namespace

std::optional<std::string> python_int(std::string_view text) {
  text = trimmed(text);
  std::string sign;
  std::string digits;
  take_sign(text, sign);
  const size_t count = take_digits(text, digits);
  if (count == 0 || count > kMaxIntegerDigits || !text.empty()) return std::nullopt;

  const size_t first = digits.find_first_not_of('0');
  return first == digits.npos ? "0" : sign + digits.substr(first);
}

std::optional<double> python_float(std::string_view text) {
  text = trimmed(text);
  std::string number;
  take_sign(text, number);
  size_t count = take_digits(text, number);
  if (!text.empty() && text[0] == '.') {
    number += '.';
    text.remove_prefix(1);
    count += take_digits(text, number);
  }
  if (count == 0) return std::nullopt;

  if (!text.empty() && (text[0] == 'e' || text[0] == 'E')) {
    number += 'e';
    text.remove_prefix(1);
    take_sign(text, number);
    if (take_digits(text, number) == 0) return std::nullopt;
  }
  if (!text.empty()) return std::nullopt;
  const double value = std::strtod(number.c_str(), nullptr);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<std::string> python_integer_literal(std::string_view text) {
  if (text.size() > 2 && text[0] == '0' && !is_digit(text[1]) && text[1] != '_') {
    const char kind = static_cast<char>(text[1] | 0x20);
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (base == 0) return std::nullopt;
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + 2, end, value, base);
    if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
    return std::to_string(value);
  }
  const std::optional<std::string> value = python_int(text);
  if (value && text[0] == '0' && *value != "0") return std::nullopt;
  return value;
}

std::string float_json(double value) {
  std::string text = json_number(value);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

std::string whole_json(double value) {
  char digits[400];  // the largest double has 309
  const int length = std::snprintf(digits, sizeof digits, "%.0f", value);
  const std::string text(digits, static_cast<size_t>(length));
  return text == "-0" ? "0" : text;
}

}  // namespace retort::models::detail
