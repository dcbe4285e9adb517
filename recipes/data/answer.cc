#include "recipes/data/answer.h"

#include <cctype>
#include <optional>
#include <utility>

namespace retort::data {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

// A number that begins at `at` (a digit, or a point before a digit), without its sign; moves `at`
// behind it.
std::string scan_number(std::string_view text, size_t& at) {
  std::string number;
  while (at < text.size() && digit(text[at])) {
    number += text[at++];
    const bool group = at + 3 < text.size() && text[at] == ',' && digit(text[at + 1]) &&
                       digit(text[at + 2]) && digit(text[at + 3]) &&
                       (at + 4 == text.size() || !digit(text[at + 4]));
    if (group) ++at;
  }
  if (at + 1 < text.size() && text[at] == '.' && digit(text[at + 1])) {
    number += text[at++];
    while (at < text.size() && digit(text[at]))
      number += text[at++];
  }
  return number;
}

std::string canonical(std::string number, bool negative) {
  const size_t point = number.find('.');
  if (point != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.ends_with('.')) number.pop_back();
  }
  number.erase(0, number.find_first_not_of('0'));
  std::string text = negative && !number.empty() ? "-" : "";
  if (number.empty() || number.front() == '.') text += '0';
  return text += number;
}

bool is_sign(std::string_view text, size_t at) {
  if (text[at] != '-') return false;
  if (at == 0) return true;
  const char before = text[at - 1];
  return !std::isalnum(static_cast<unsigned char>(before)) && before != ')';
}

// The first or the last number of the text, "" if none.
std::string find_number(std::string_view text, bool first) {
  std::string found;
  for (size_t at = 0; at < text.size();) {
    const bool starts =
        digit(text[at]) || (text[at] == '.' && at + 1 < text.size() && digit(text[at + 1]));
    if (!starts) {
      ++at;
      continue;
    }
    size_t sign = at;  // "-5", "-$5"
    if (sign > 0 && text[sign - 1] == '$') --sign;
    const bool negative = sign > 0 && is_sign(text, sign - 1);
    found = canonical(scan_number(text, at), negative);
    if (first) return found;
  }
  return found;
}

// What stands in the last \boxed{...}, or nullopt; with LaTeX's thousands separators "{,}", "\!"
// and "\," as plain text. A box that does not end reaches to the end of the text (a cut
// completion).
std::optional<std::string> last_box(std::string_view text) {
  constexpr std::string_view kBox = "\\boxed{";
  const size_t box = text.rfind(kBox);
  if (box == std::string_view::npos) return std::nullopt;
  text.remove_prefix(box + kBox.size());
  size_t end = 0;
  for (int depth = 1; end < text.size(); ++end) {
    if (text[end] == '\\' && end + 1 < text.size()) {
      ++end;
    } else if (text[end] == '{') {
      ++depth;
    } else if (text[end] == '}' && --depth == 0) {
      break;
    }
  }
  std::string inside(text.substr(0, end));
  for (const auto& [latex, plain] : {std::pair<std::string_view, std::string_view>{"{,}", ","},
                                     {"\\!", ""},
                                     {"\\,", ""},
                                     {"\\$", "$"}})
    for (size_t at = inside.find(latex); at != std::string::npos; at = inside.find(latex, at))
      inside.replace(at, latex.size(), plain);
  return inside;
}

bool compares(std::string_view box) {
  return box.find("frac") == std::string_view::npos && box.find("\\sqrt") == std::string_view::npos;
}

}  // namespace

std::string extract_answer(std::string_view text) {
  constexpr std::string_view kMark = "####";
  const size_t mark = text.rfind(kMark);
  if (mark == std::string_view::npos) {
    const std::optional<std::string> box = last_box(text);
    if (box) return compares(*box) ? find_number(*box, false) : "";
    return find_number(text, false);
  }
  return find_number(text.substr(mark + kMark.size()), true);
}

bool same_answer(std::string_view completion, std::string_view reference) {
  const std::string answer = extract_answer(completion);
  return !answer.empty() && answer == extract_answer(reference);
}

}  // namespace retort::data
