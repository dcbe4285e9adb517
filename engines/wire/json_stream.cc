#include "engines/wire/json_stream.h"

#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines {
namespace {

constexpr size_t kMaxNumberBytes = 64;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_of_number(char c) {
  return is_digit(c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

// Returns where the digits end that begin at `at`.
size_t after_digits(std::string_view text, size_t at) {
  while (at < text.size() && is_digit(text[at]))
    ++at;
  return at;
}

// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
bool is_number(std::string_view text) {
  size_t at = text.starts_with('-') ? 1 : 0;
  const size_t first = at;
  at = after_digits(text, at);
  if (at == first || (text[first] == '0' && at > first + 1)) return false;

  if (at < text.size() && text[at] == '.') {
    const size_t begin = ++at;
    at = after_digits(text, at);
    if (at == begin) return false;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const size_t begin = at;
    at = after_digits(text, at);
    if (at == begin) return false;
  }
  return at == text.size();
}

}  // namespace

void JsonReader::add(std::string_view piece) {
  at_ = 0;
  while (at_ < piece.size())
    at_ = take(piece, at_);
  offset_ += piece.size();
  at_ = 0;
}

void JsonReader::end() {
  if (state_ == State::kNumber) number_ended();
  if (state_ != State::kDone) refuse("the text ends too early");
}

// Returns where to go on. A piece may end anywhere, within an escape or a number too, so what was
// read so far is in the members alone.
size_t JsonReader::take(std::string_view piece, size_t at) {
  const char c = piece[at];
  switch (state_) {
    case State::kString: return take_string(piece, at);
    case State::kNumber: return take_number(piece, at);
    case State::kEscape: escape(c); return at + 1;
    case State::kUnicode: unicode_digit(c); return at + 1;
    case State::kWord: word_letter(c); return at + 1;
    default: break;
  }
  if (!is_space(c)) take_structure(c);
  return at + 1;
}

void JsonReader::take_structure(char c) {
  switch (state_) {
    case State::kFirstValue:
      if (c == ']') return close(false);
      return begin_value(c);
    case State::kValue: return begin_value(c);

    case State::kFirstKey:
      if (c == '}') return close(true);
      [[fallthrough]];
    case State::kKey:
      if (c != '"') refuse_character(c, "a key");
      is_key_ = true;
      state_ = State::kString;
      return;

    case State::kColon:
      if (c != ':') refuse_character(c, "':'");
      state_ = State::kValue;
      return;
    case State::kAfterValue:
      if (c == ',') {
        state_ = levels_.back() ? State::kKey : State::kValue;
        return;
      }
      if (c == '}' || c == ']') return close(c == '}');
      refuse_character(c, "',' or an end");
    default: refuse_character(c, "the end of the text");
  }
}

void JsonReader::begin_value(char c) {
  if (c == '{' || c == '[') return open(c == '{');
  if (c == '"') {
    is_key_ = false;
    state_ = State::kString;
    return;
  }
  if (c == '-' || is_digit(c)) {
    token_.assign(1, c);
    state_ = State::kNumber;
    return;
  }

  if (c == 't')
    word_ = "rue";
  else if (c == 'f')
    word_ = "alse";
  else if (c == 'n')
    word_ = "ull";
  else
    refuse_character(c, "a value");
  first_letter_ = c;
  state_ = State::kWord;
}

void JsonReader::word_letter(char c) {
  if (c != word_.front()) refuse_character(c, std::string("'") + word_.front() + "'");
  word_.remove_prefix(1);
  if (!word_.empty()) return;
  if (first_letter_ == 'n')
    handler_.null();
  else
    handler_.boolean(first_letter_ == 't');
  value_ended();
}

// Reads up to the end of the string, to an escape or to the end of the piece.
size_t JsonReader::take_string(std::string_view piece, size_t at) {
  size_t end = at;
  while (end < piece.size() && piece[end] != '"' && piece[end] != '\\' &&
         static_cast<unsigned char>(piece[end]) >= 0x20)
    ++end;
  keep(piece.substr(at, end - at));
  if (end == piece.size()) return end;

  at_ = end;
  if (piece[end] == '\\')
    state_ = State::kEscape;
  else if (piece[end] == '"')
    string_ended();
  else
    refuse_character(piece[end], "no control character within a string");
  return end + 1;
}

void JsonReader::escape(char c) {
  static constexpr std::string_view kNames = "\"\\/bfnrt";
  static constexpr std::string_view kBytes = "\"\\/\b\f\n\r\t";
  if (c == 'u') {
    code_ = 0;
    num_digits_ = 0;
    state_ = State::kUnicode;
    return;
  }
  const size_t which = kNames.find(c);
  if (which == std::string_view::npos) refuse_character(c, "an escape");
  keep(kBytes.substr(which, 1));
  state_ = State::kString;
}

void JsonReader::unicode_digit(char c) {
  uint32_t digit = 0;
  const auto [end, error] = std::from_chars(&c, &c + 1, digit, 16);
  if (error != std::errc()) refuse_character(c, "a hexadecimal digit");
  code_ = code_ * 16 + digit;
  if (++num_digits_ < 4) return;
  keep_code_point(code_);
  state_ = State::kString;
}

// A half of a surrogate pair waits for the other one, which is an escape of its own. Halves that do
// not meet become U+FFFD.
void JsonReader::keep_code_point(uint32_t code) {
  const bool low = code >= 0xDC00 && code < 0xE000;
  if (low && high_surrogate_ != 0) {
    code = 0x10000 + ((high_surrogate_ - 0xD800) << 10) + (code - 0xDC00);
    high_surrogate_ = 0;
  } else if (low) {
    code = 0xFFFD;
  } else if (code >= 0xD800 && code < 0xDC00) {
    keep_lone_surrogate();
    high_surrogate_ = code;
    return;
  }

  // UTF-8: six bits in each byte after the first.
  std::string bytes;
  const auto tail = [&](int shift) { bytes += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    bytes += static_cast<char>(code);
  } else if (code < 0x800) {
    bytes += static_cast<char>(0xC0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    bytes += static_cast<char>(0xE0 | (code >> 12));
    tail(6);
    tail(0);
  } else {
    bytes += static_cast<char>(0xF0 | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
  keep(bytes);
}

void JsonReader::keep(std::string_view bytes) {
  if (bytes.empty()) return;
  keep_lone_surrogate();
  if (!is_key_) handler_.string_piece(bytes);
  // A long string goes to the handler in pieces, and only its beginning is kept: its memory does
  // not grow with what a stranger sends.
  token_.append(bytes.substr(0, kKeptBytes - token_.size()));
}

void JsonReader::keep_lone_surrogate() {
  if (std::exchange(high_surrogate_, 0) != 0) keep("\xEF\xBF\xBD");
}

void JsonReader::string_ended() {
  keep_lone_surrogate();
  if (is_key_) {
    state_ = State::kColon;
    handler_.key(token_);
    token_.clear();
    return;
  }
  handler_.string(token_);
  token_.clear();
  value_ended();
}

size_t JsonReader::take_number(std::string_view piece, size_t at) {
  size_t end = at;
  while (end < piece.size() && is_of_number(piece[end]))
    ++end;
  if (token_.size() + (end - at) > kMaxNumberBytes) refuse("a number is too long");
  token_.append(piece.substr(at, end - at));
  if (end < piece.size()) number_ended();
  return end;
}

void JsonReader::number_ended() {
  double value = 0;
  const char* const end = token_.data() + token_.size();
  const auto [stopped, error] = std::from_chars(token_.data(), end, value);
  // A number that is too small for a double is 0, and one that is too large is refused.
  // from_chars() reports both alike, so the sign of the exponent tells them apart; without an
  // exponent no number of this length is either.
  const bool too_small = error == std::errc::result_out_of_range &&
                         token_.find_first_of("eE") != std::string::npos &&
                         token_[token_.find_first_of("eE") + 1] == '-';
  if (!is_number(token_) || stopped != end || (error != std::errc() && !too_small))
    refuse("'" + token_ + "' is no number");
  handler_.number(value);
  token_.clear();
  value_ended();
}

void JsonReader::open(bool object) {
  if (levels_.size() >= static_cast<size_t>(kMaxJsonNesting)) refuse("too many levels");
  levels_.push_back(object);
  state_ = object ? State::kFirstKey : State::kFirstValue;
  object ? handler_.begin_object() : handler_.begin_array();
}

void JsonReader::close(bool object) {
  if (levels_.back() != object) refuse_character(object ? '}' : ']', object ? "']'" : "'}'");
  levels_.pop_back();
  object ? handler_.end_object() : handler_.end_array();
  value_ended();
}

void JsonReader::value_ended() { state_ = levels_.empty() ? State::kDone : State::kAfterValue; }

void JsonReader::refuse(const std::string& what) const {
  throw Error(ErrorCode::kCorrupt,
              "no JSON at byte " + std::to_string(offset_ + at_) + ": " + what);
}

void JsonReader::refuse_character(char c, const std::string& expected) const {
  refuse(json_quote(std::string_view(&c, 1)) + " where " + expected + " is expected");
}

}  // namespace retort::engines
