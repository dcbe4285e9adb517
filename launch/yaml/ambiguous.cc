#include "launch/yaml/ambiguous.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>

namespace retort::launch {
namespace {

bool all_in(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

constexpr std::string_view kDecimalDigits = "0123456789";

std::string_view without_sign(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  return text;
}

// "yes", "Yes" or "YES", the three ways in which YAML writes a word of its own.
bool is_word(std::string_view text, std::string_view word) {
  if (text.size() != word.size()) return false;
  const auto equal = [&](size_t from, bool upper) {
    for (size_t i = from; i < word.size(); ++i) {
      const char c =
          upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(word[i]))) : word[i];
      if (text[i] != c) return false;
    }
    return true;
  };
  const bool capital = text[0] == std::toupper(static_cast<unsigned char>(word[0]));
  return equal(0, false) || equal(0, true) || (capital && equal(1, false));
}

bool is_switch_of_yaml_1_1(std::string_view text) {
  constexpr std::array<std::string_view, 6> kWords{"yes", "no", "on", "off", "y", "n"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return is_word(text, word); });
}

// 12:30 and 1:30:00.5, which are numbers to the base of 60.
bool is_sexagesimal(std::string_view text) {
  const size_t colon = text.find(':');
  return colon != std::string_view::npos && colon + 1 < text.size() &&
         all_in(text.substr(0, colon), kDecimalDigits) && all_in(text, "0123456789:.") &&
         text.back() != ':';
}

bool is_number_of_yaml_1_1_alone(std::string_view text) {
  text = without_sign(text);
  const bool digits = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0]));
  const bool grouped =
      digits && text.find('_') != std::string_view::npos &&
      (all_in(text, "0123456789_.") ||
       (text.starts_with("0x") && all_in(text.substr(2), "0123456789abcdefABCDEF_")));
  const bool octal = text.size() > 1 && text[0] == '0' && all_in(text, kDecimalDigits);
  const bool binary = text.starts_with("0b") && all_in(text.substr(2), "01_");
  return grouped || octal || binary || is_sexagesimal(text);
}

bool is_no_number_of_json(std::string_view text) {
  return is_word(without_sign(text), ".inf") || is_word(text, ".nan") ||
         without_sign(text) == ".Inf" || text == ".NaN";
}

std::string of_base(std::string_view digits, int base, std::string_view whole) {
  int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, value, base);
  const bool read = error == std::errc() && last == end && !digits.empty() && digits[0] != '-';
  return read ? std::to_string(value) : std::string(whole);
}

}  // namespace

std::string why_ambiguous(std::string_view text) {
  const std::string shown = "'" + std::string(text) + "'";
  const std::string quoted = "\"" + std::string(text) + "\"";
  if (is_switch_of_yaml_1_1(text))
    return shown +
           " is a boolean to readers of YAML 1.1, such as PyYAML's, and a text to those of "
           "1.2; write true or false, or " +
           quoted + " for the text";
  if (is_number_of_yaml_1_1_alone(text))
    return shown +
           " is another number, or none, to readers of YAML 1.1 than to those of 1.2; "
           "write the number in plain digits, or " +
           quoted + " for the text";
  if (is_no_number_of_json(text))
    return shown + " is no number that can be handed on; write " + quoted + " for the text";
  return "";
}

std::string json_number_of_yaml(std::string_view text) {
  if (text.starts_with("0x")) return of_base(text.substr(2), 16, text);
  if (text.starts_with("0o")) return of_base(text.substr(2), 8, text);

  const bool minus = text.starts_with('-');
  const std::string_view digits = without_sign(text);
  const std::string_view first = digits.substr(digits.starts_with('.') ? 1 : 0, 1);
  if (!all_in(first, kDecimalDigits)) return std::string(text);
  std::string number(digits);
  if (number[0] == '.') number.insert(0, "0");
  const size_t point = number.find('.');
  if (point != std::string::npos &&
      (point + 1 == number.size() || number[point + 1] == 'e' || number[point + 1] == 'E'))
    number.insert(point + 1, "0");
  return (minus ? "-" : "") + number;
}

}  // namespace retort::launch
