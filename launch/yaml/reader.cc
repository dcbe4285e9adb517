#include "launch/yaml/reader.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "launch/yaml/build.h"

namespace retort::launch {
namespace {

const std::string& scalar_text(const YamlNode& node, const char* expected) {
  if (node.kind != YamlNode::Kind::kScalar)
    throw Error(ErrorCode::kInvalidArgument, std::string("expected ") + expected + ", got " +
                                                 std::string(yaml_kind_name(node.kind)));
  return node.scalar;
}

[[noreturn]] void refuse_text(const YamlNode& node, const char* expected) {
  throw Error(ErrorCode::kInvalidArgument, std::string("expected ") + expected + ", got " +
                                               (node.quoted ? "the text \"" : "'") + node.scalar +
                                               (node.quoted ? "\"" : "'"));
}

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

bool contains_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const bool begins = at == 0 || !is_word_character(text[at - 1]);
    const size_t end = at + word.size();
    if (begins && (end == text.size() || !is_word_character(text[end]))) return true;
  }
  return false;
}

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

// "" for a value without quotes that YAML 1.1, which PyYAML reads, and 1.2 take for the same; else
// what it is to whom and what to write instead. Where a field has a type, values are read by it or
// refused; this is asked of those that have none (base/json_block.h). Left out is 1e3, a number in
// 1.2 and here, a text to PyYAML, which wants 1.0e+3.
// - yes, no, on, off, y, n in lower case, capitals or with a capital: booleans of 1.1, texts of 1.2
// - 1_000, 010, 0b11, 12:30: numbers of 1.1 (12:30 is 750), texts or other numbers of 1.2
// - .inf, .nan: numbers that JSON does not have
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

// A number of YAML 1.2 as JSON writes it: .5, 5., +1, 0x1f and 0o17 as 0.5, 5.0, 1, 31 and 15. Any
// other text as it is.
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

// A word without quotes is what YAML says it is: null, a boolean, a number, or text.
nlohmann::ordered_json json_scalar(const YamlNode& node) {
  const std::string& text = node.scalar;
  if (node.quoted) return text;
  for (const char* word : {"true", "True", "TRUE"})
    if (text == word) return true;
  for (const char* word : {"false", "False", "FALSE"})
    if (text == word) return false;

  const auto number =
      nlohmann::ordered_json::parse(json_number_of_yaml(text), nullptr, /*allow_exceptions=*/false);
  return number.is_number() ? number : nlohmann::ordered_json(text);
}

nlohmann::ordered_json json_of(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return nullptr;
    case YamlNode::Kind::kScalar: return json_scalar(node);
    case YamlNode::Kind::kList: {
      auto list = nlohmann::ordered_json::array();
      for (const YamlNode& item : node.items)
        list.push_back(json_of(item));
      return list;
    }
    case YamlNode::Kind::kMap: break;
  }
  auto block = nlohmann::ordered_json::object();
  for (const YamlNode::Entry& entry : node.entries)
    block[entry.key] = json_of(entry.value);
  return block;
}

void expect_block(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kMap)
    throw Error(ErrorCode::kInvalidArgument,
                "expected a block of keys, got " + std::string(yaml_kind_name(node.kind)));
}

template <class Number>
void read_number(const YamlNode& node, const char* expected, Number& value) {
  const std::string& text = scalar_text(node, expected);
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(begin, last, value);
  if (node.quoted || error != std::errc() || end != last) refuse_text(node, expected);
}

}  // namespace

void read_scalar(const YamlNode& node, bool& value) {
  const std::string& text = scalar_text(node, "true or false");
  if (!node.quoted && (text == "true" || text == "True" || text == "TRUE")) {
    value = true;
  } else if (!node.quoted && (text == "false" || text == "False" || text == "FALSE")) {
    value = false;
  } else {
    refuse_text(node, "true or false");
  }
}

void read_scalar(const YamlNode& node, int64_t& value) { read_number(node, "an integer", value); }

void read_scalar(const YamlNode& node, double& value) {
  read_number(node, "a number", value);
  if (!std::isfinite(value)) refuse_text(node, "a number");
}

void read_scalar(const YamlNode& node, std::string& value) { value = scalar_text(node, "text"); }

void read_scalar(const YamlNode& node, Duration& value) {
  value = parse_duration(scalar_text(node, "a duration: 250ms, 120s, 5m, 2h"));
}

void read_scalar(const YamlNode& node, ShortDuration& value) {
  value = parse_short_duration(scalar_text(node, "a short duration: 0us, 20us, 1ms"));
}

void read_scalar(const YamlNode& node, ByteSize& value) {
  value = parse_byte_size(scalar_text(node, "a size: 512KiB, 64MiB, 2GiB"));
}

void read_scalar(const YamlNode& node, TextOrList& value) {
  value.is_list = node.kind == YamlNode::Kind::kList;
  value.items.clear();
  if (!value.is_list) {
    value.items.push_back(scalar_text(node, "text, or a list of texts"));
    return;
  }
  for (const YamlNode& item : node.items)
    value.items.push_back(scalar_text(item, "a list of texts"));
}

void read_scalar(const YamlNode& node, FreeBlock& value) {
  expect_block(node);
  value.flow = yaml_line(node);
}

void read_scalar(const YamlNode& node, JsonBlock& value) {
  expect_block(node);
  value.json = json_of(node).dump();
}

void YamlReader::refuse(const std::string& message) const {
  throw Error(ErrorCode::kInvalidArgument,
              node_.place.prefix() + (path_.empty() ? "" : path_ + ": ") + message);
}

YamlReader YamlReader::child(const std::string& key, const YamlNode& node) const {
  return {node, path_.empty() ? key : path_ + "." + key, later_};
}

YamlReader YamlReader::item(size_t index, const YamlNode& node) const {
  return {node, path_ + "[" + std::to_string(index) + "]", later_};
}

void YamlReader::expect(YamlNode::Kind kind) const {
  if (node_.kind == kind) return;
  std::string got(yaml_kind_name(node_.kind));
  if (node_.kind == YamlNode::Kind::kScalar) got = "'" + node_.scalar + "'";
  refuse("expected " + std::string(yaml_kind_name(kind)) + ", got " + got);
}

void YamlReader::refuse_invalid(const Error& error) const {
  // The first key of this block that the message names; the block itself when it names none.
  const YamlPlace* place = &node_.place;
  size_t best = std::string::npos;
  for (const auto& entry : node_.entries) {
    if (!contains_word(error.message(), entry.key)) continue;
    const size_t at = error.message().find(entry.key);
    if (at < best) {
      best = at;
      place = &entry.place;
      if (!entry.value.place.source.empty()) place = &entry.value.place;
    }
  }
  const bool has_path = path_.empty() || error.message().starts_with(path_);
  throw Error(error.code(), place->prefix() + (has_path ? "" : path_ + ": ") + error.message());
}

std::string YamlReader::later(const std::string& suffix) const {
  if (!later_ || !*later_) return "";
  std::string plain;
  bool in_index = false;
  for (char c : path_) {
    if (c == '[') in_index = true;
    if (!in_index) plain += c;
    if (c == ']') in_index = false;
  }
  if (plain.empty() && suffix.starts_with('.')) return (*later_)(suffix.substr(1));
  return (*later_)(plain + suffix);
}

void YamlReader::refuse_ambiguous_values() const {
  if (node_.kind == YamlNode::Kind::kScalar && !node_.quoted) {
    const std::string why = why_ambiguous(node_.scalar);
    if (!why.empty()) refuse(why);
  }
  for (size_t i = 0; i < node_.items.size(); ++i)
    item(i, node_.items[i]).refuse_ambiguous_values();
  for (const YamlNode::Entry& entry : node_.entries)
    child(entry.key, entry.value).refuse_ambiguous_values();
}

void YamlReader::refuse_unknown(const std::vector<std::string_view>& known) const {
  for (const auto& entry : node_.entries) {
    if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
    const std::string path = path_.empty() ? entry.key : path_ + "." + entry.key;
    const std::string is_later = later("." + entry.key);
    if (!is_later.empty())
      throw Error(ErrorCode::kInvalidArgument, entry.place.prefix() + path + ": " + is_later);
    const std::string nearest = nearest_name(entry.key, known);
    std::string all;
    for (const auto name : known)
      all += (all.empty() ? "" : ", ") + std::string(name);
    throw Error(
        ErrorCode::kInvalidArgument,
        entry.place.prefix() + path + ": unknown key" +
            (nearest.empty() ? " (known here: " + all + ")" : "; did you mean '" + nearest + "'?"));
  }
}

}  // namespace retort::launch
