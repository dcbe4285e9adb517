#include "models/text/detail/said_values.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>

#include "base/json_text.h"
#include "models/text/detail/python_numbers.h"
#include "models/text/detail/unicode.h"

namespace retort::models::detail {
namespace {

// Reads one value after another out of a text; what is no JSON gives none, and the reader is then
// thrown away.
class JsonReader {
 public:
  JsonReader(std::string_view text, size_t at) : text_(text), at_(at) {}

  size_t at() const { return at_; }
  void skip_space() { at_ = std::min(text_.find_first_not_of(kJsonSpace, at_), text_.size()); }
  bool done() const { return at_ == text_.size(); }

  std::optional<std::string> value(int depth);
  std::optional<SaidObject> object(int depth);

 private:
  bool take(char c);
  std::optional<std::string> list(int depth);
  std::optional<std::string> string();
  bool escape(std::string& to);
  std::optional<uint32_t> four_digits();
  std::optional<std::string> number();
  size_t digits();

  std::string_view text_;
  size_t at_;
};

bool JsonReader::take(char c) {
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

std::optional<std::string> JsonReader::value(int depth) {
  if (at_ == text_.size()) return std::nullopt;
  switch (text_[at_]) {
    case '{': {
      const std::optional<SaidObject> members = object(depth);
      return members ? std::optional(members->json()) : std::nullopt;
    }
    case '[': return list(depth);
    case '"': return string();
    default: break;
  }
  for (const std::string_view word : {"true", "false", "null"}) {
    if (!text_.substr(at_).starts_with(word)) continue;
    at_ += word.size();
    return std::string(word);
  }
  return number();
}

std::optional<SaidObject> JsonReader::object(int depth) {
  if (depth == kMaxJsonNesting || !take('{')) return std::nullopt;
  SaidObject members;
  skip_space();
  if (take('}')) return members;
  for (;;) {
    std::optional<std::string> key = string();
    skip_space();
    if (!key || !take(':')) return std::nullopt;
    skip_space();
    std::optional<std::string> member = value(depth + 1);
    if (!member) return std::nullopt;
    members.set(std::move(*key), std::move(*member));

    skip_space();
    if (take('}')) return members;
    if (!take(',')) return std::nullopt;
    skip_space();
  }
}

std::optional<std::string> JsonReader::list(int depth) {
  if (depth == kMaxJsonNesting || !take('[')) return std::nullopt;
  std::string json = "[";
  skip_space();
  if (take(']')) return json + "]";
  for (;;) {
    const std::optional<std::string> item = value(depth + 1);
    if (!item) return std::nullopt;
    json += (json.size() == 1 ? "" : ", ") + *item;

    skip_space();
    if (take(']')) return json + "]";
    if (!take(',')) return std::nullopt;
    skip_space();
  }
}

std::optional<std::string> JsonReader::string() {
  if (!take('"')) return std::nullopt;
  std::string text;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return json_quote(text);
    if (static_cast<unsigned char>(c) < 0x20) return std::nullopt;
    if (c != '\\')
      text += c;
    else if (!escape(text))
      return std::nullopt;
  }
  return std::nullopt;
}

// Behind a backslash.
bool JsonReader::escape(std::string& to) {
  if (at_ == text_.size()) return false;
  const char c = text_[at_++];
  constexpr std::string_view kFrom = "\"\\/bfnrt";
  constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
  if (const size_t place = kFrom.find(c); place != kFrom.npos) {
    to += kTo[place];
    return true;
  }
  if (c != 'u') return false;

  std::optional<uint32_t> point = four_digits();
  if (point && *point >= 0xD800 && *point < 0xDC00) {  // the first half of a pair
    if (!take('\\') || !take('u')) return false;
    const std::optional<uint32_t> second = four_digits();
    if (!second || *second < 0xDC00 || *second > 0xDFFF) return false;
    point = 0x10000 + ((*point - 0xD800) << 10) + (*second - 0xDC00);
  }
  return point && append_utf8(*point, to);
}

std::optional<uint32_t> JsonReader::four_digits() {
  const std::optional<uint32_t> value = hex_value(text_.substr(at_, 4), 4);
  if (value) at_ += 4;
  return value;
}

// How many there were.
size_t JsonReader::digits() {
  const size_t begin = at_;
  at_ = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
  return at_ - begin;
}

std::optional<std::string> JsonReader::number() {
  const size_t begin = at_;
  take('-');
  const bool zero = at_ < text_.size() && text_[at_] == '0';
  const size_t whole = digits();
  if (whole == 0 || (zero && whole > 1) || whole > kMaxIntegerDigits) return std::nullopt;

  bool real = false;
  if (take('.')) {
    if (digits() == 0) return std::nullopt;
    real = true;
  }
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    if (digits() == 0) return std::nullopt;
    real = true;
  }
  const std::string_view written = text_.substr(begin, at_ - begin);
  if (real && !python_float(written)) return std::nullopt;
  return std::string(written);
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

void SaidObject::set(std::string key, std::string value) {
  const auto [place, added] = places_.try_emplace(key, members_.size());
  if (added)
    members_.emplace_back(std::move(key), std::move(value));
  else
    members_[place->second].second = std::move(value);
}

const std::string* SaidObject::find(std::string_view name) const {
  const auto place = places_.find(json_quote(name));
  return place == places_.end() ? nullptr : &members_[place->second].second;
}

std::string SaidObject::json() const {
  std::string json = "{";
  for (const auto& [key, value] : members_)
    json += (json.size() == 1 ? "" : ", ") + key + ": " + value;
  return json + "}";
}

std::optional<std::string> read_json(std::string_view text) {
  JsonReader reader(text, 0);
  reader.skip_space();
  std::optional<std::string> value = reader.value(kArgumentDepth);
  reader.skip_space();
  return reader.done() ? value : std::nullopt;
}

std::optional<SaidObject> read_json_object(std::string_view text) {
  size_t at = std::min(text.find_first_not_of(kJsonSpace), text.size());
  std::optional<SaidObject> object = read_json_object_at(text, at);
  if (object && text.find_first_not_of(kJsonSpace, at) != text.npos) return std::nullopt;
  return object;
}

std::optional<SaidObject> read_json_object_at(std::string_view text, size_t& at) {
  JsonReader reader(text, at);
  std::optional<SaidObject> object = reader.object(0);
  at = reader.at();
  return object;
}

std::optional<ToolCall> call_of(const SaidObject& call, const std::string& arguments) {
  const std::string* name = call.find("name");
  if (name == nullptr || name->front() != '"' || arguments.front() != '{') return std::nullopt;
  return ToolCall{nlohmann::json::parse(*name).get<std::string>(), arguments};
}

}  // namespace retort::models::detail
