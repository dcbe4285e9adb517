#include "models/text/detail/python_literals.h"

#include <algorithm>
#include <cstdint>

#include "base/json_text.h"
#include "models/text/detail/python_numbers.h"
#include "models/text/detail/said_values.h"
#include "models/text/detail/unicode.h"

namespace retort::models::detail {
namespace {

bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool continues_name(char c) { return begins_name(c) || (c >= '0' && c <= '9'); }

}  // namespace

bool PythonReader::take(std::string_view expected) {
  if (!text_.substr(at_).starts_with(expected)) return false;
  at_ += expected.size();
  return true;
}

void PythonReader::skip_space() {
  at_ = std::min(text_.find_first_not_of(" \t\n\r\f", at_), text_.size());
}

std::string_view PythonReader::name() {
  const size_t begin = at_;
  if (begins_name(peek()))
    while (!done() && continues_name(text_[at_]))
      ++at_;
  return text_.substr(begin, at_ - begin);
}

std::optional<std::string> PythonReader::value(int depth) {
  if (begins_string()) return strings();
  const char c = peek();
  if (depth == kMaxJsonNesting && (c == '[' || c == '(' || c == '{')) return std::nullopt;
  if (c == '[' && take("[")) return sequence(']', depth);
  if (c == '(' && take("(")) return parenthesised(depth);
  if (c == '{' && take("{")) return dictionary_or_set(depth);
  if (c == '-' || c == '+') return signed_number();
  if (begins_name(c)) return word();
  return number(false);
}

// Behind the opening bracket, or behind a comma in it and the JSON of what stands before that.
std::optional<std::string> PythonReader::sequence(char end, int depth, std::string items) {
  const std::string_view bracket(&end, 1);
  for (;;) {
    skip_space();
    if (take(bracket)) return "[" + items + "]";
    const std::optional<std::string> item = value(depth + 1);
    if (!item) return std::nullopt;
    items += (items.empty() ? "" : ", ") + *item;
    skip_space();
    if (!take(",") && peek() != end) return std::nullopt;
  }
}

// A tuple, or one value: the comma makes the difference.
std::optional<std::string> PythonReader::parenthesised(int depth) {
  skip_space();
  if (take(")")) return "[]";
  const std::optional<std::string> first = value(depth + 1);
  skip_space();
  if (!first) return std::nullopt;
  if (take(")")) return first;
  if (!take(",")) return std::nullopt;
  return sequence(')', depth, *first);
}

std::optional<std::string> PythonReader::dictionary_or_set(int depth) {
  SaidObject members;
  skip_space();
  if (take("}")) return members.json();

  // A set is told by what does not follow its first item. That is read again as a key, where only
  // constants are, so that nothing that holds others is read twice.
  const size_t begin = at_;
  const std::optional<std::string> first = value(depth + 1);
  skip_space();
  if (!first) return std::nullopt;
  if (take("}")) return "[" + *first + "]";
  if (take(",")) return sequence('}', depth, *first);
  at_ = begin;

  for (;;) {
    skip_space();
    if (take("}")) return members.json();
    std::optional<std::string> name = key();
    skip_space();
    if (!name || !take(":")) return std::nullopt;
    skip_space();
    std::optional<std::string> member = value(depth + 1);
    if (!member) return std::nullopt;
    members.set(std::move(*name), std::move(*member));
    skip_space();
    if (!take(",") && peek() != '}') return std::nullopt;
  }
}

// A constant, written as json.dumps writes keys.
std::optional<std::string> PythonReader::key() {
  if (begins_string()) return strings();
  std::optional<std::string> constant;
  if (!begins_name(peek())) {
    constant = number(false);
  } else if (const char c = peek(); c == 'T' || c == 'F' || c == 'N') {
    constant = word();  // null, true and false are names, and names are no keys
  }
  return constant ? std::optional(json_quote(*constant)) : std::nullopt;
}

std::optional<std::string> PythonReader::signed_number() {
  bool negative = false;
  while (peek() == '-' || peek() == '+') {
    if (peek() == '-') negative = !negative;
    ++at_;
    skip_space();
  }
  return number(negative);
}

std::optional<std::string> PythonReader::number(bool negative) {
  const size_t begin = at_;
  const auto is_exponent = [&](size_t at) {
    const bool hex = text_.substr(begin).starts_with("0x") || text_.substr(begin).starts_with("0X");
    return !hex && at > begin && (text_[at - 1] == 'e' || text_[at - 1] == 'E');
  };
  while (!done()) {
    const char c = text_[at_];
    const bool sign = (c == '-' || c == '+') && is_exponent(at_);
    if (!continues_name(c) && c != '.' && !sign) break;
    ++at_;
  }
  const std::string_view written = text_.substr(begin, at_ - begin);

  // It begins with a digit or a point, as int() and float() take more than programs do.
  if (written.empty() || begins_name(written[0])) return std::nullopt;
  if (const auto whole = python_integer_literal(written))
    return (negative && *whole != "0" ? "-" : "") + *whole;
  if (written.find_first_of(".eE") == written.npos) return std::nullopt;
  const std::optional<double> real = python_float(written);
  return real ? std::optional(float_json(negative ? -*real : *real)) : std::nullopt;
}

// True, False and None; null, true and false, which models of JSON write.
std::optional<std::string> PythonReader::word() {
  const std::string_view word = name();
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null") return "null";
  return std::nullopt;
}

// A quote, behind r or u or not.
bool PythonReader::begins_string() const {
  const auto is_quote = [&](size_t at) {
    return at < text_.size() && (text_[at] == '"' || text_[at] == '\'');
  };
  const char c = peek();
  const bool prefix = c == 'r' || c == 'R' || c == 'u' || c == 'U';
  return is_quote(at_) || (prefix && is_quote(at_ + 1));
}

// Strings side by side are one.
std::optional<std::string> PythonReader::strings() {
  std::string text;
  while (begins_string()) {
    if (!string(text)) return std::nullopt;
    skip_space();
  }
  return json_quote(text);
}

bool PythonReader::string(std::string& to) {
  const bool raw = peek() == 'r' || peek() == 'R';
  if (peek() != '"' && peek() != '\'') ++at_;
  const char quote = peek();
  const std::string triple(3, quote);
  const bool lines = take(triple);  // three quotes: line ends may stand in it
  const std::string_view end = std::string_view(triple).substr(lines ? 0 : 2);
  if (!lines) ++at_;

  while (!done()) {
    if (take(end)) return true;
    const char c = text_[at_++];
    if (c == '\0' || (!lines && (c == '\n' || c == '\r'))) return false;
    if (c != '\\') {
      to += c;
    } else if (raw) {
      if (done()) return false;
      to += c;  // with what it stands before, a quote too
      to += text_[at_++];
    } else if (!escape(to)) {
      return false;
    }
  }
  return false;
}

// Behind a backslash.
bool PythonReader::escape(std::string& to) {
  if (done()) return false;
  const char c = text_[at_++];
  constexpr std::string_view kFrom = "\\'\"abfnrtv";
  constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
  if (const size_t place = kFrom.find(c); place != kFrom.npos) {
    to += kTo[place];
    return true;
  }
  if (c == '\n') return true;  // a line that goes on
  if (c == 'x') return numbered(2, to);
  if (c == 'u') return numbered(4, to);
  if (c == 'U') return numbered(8, to);
  if (c == 'N') return false;  // by a character's name

  if (c < '0' || c > '7') {
    to += '\\';  // no escape: both characters are the text's
    to += c;
    return true;
  }
  uint32_t point = static_cast<uint32_t>(c - '0');
  for (int more = 0; more < 2 && peek() >= '0' && peek() <= '7'; ++more)
    point = point * 8 + static_cast<uint32_t>(text_[at_++] - '0');
  return append_utf8(point, to);
}

bool PythonReader::numbered(size_t digits, std::string& to) {
  const std::optional<uint32_t> point = hex_value(text_.substr(at_, digits), digits);
  at_ = std::min(at_ + digits, text_.size());
  return point && append_utf8(*point, to);
}

}  // namespace retort::models::detail
