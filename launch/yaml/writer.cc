#include "launch/yaml/writer.h"

#include <algorithm>
#include <array>

#include "base/json_text.h"

namespace retort::launch {

namespace {

// Text in which no `${` is taken for a variable.
std::string unexpanded(const std::string& text) {
  std::string escaped;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "${") == 0) escaped += '$';
    escaped += text[i];
  }
  return escaped;
}

}  // namespace

bool is_plain_text(const std::string& text) {
  constexpr std::array<std::string_view, 10> kWords{"null", "true", "false", "yes", "no",
                                                    "on",   "off",  "y",     "n",   "nan"};
  if (text.empty() || !(std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/'))
    return false;
  std::string lower;
  for (char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.' &&
        c != '/')
      return false;
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return std::find(kWords.begin(), kWords.end(), lower) == kWords.end();
}

std::string yaml_text(bool value) { return value ? "true" : "false"; }
std::string yaml_text(int64_t value) { return std::to_string(value); }

std::string yaml_text(double value) {
  std::string text = json_number(value);
  // YAML 1.1 readers take a number with an exponent for text unless it has a point.
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

std::string yaml_text(const std::string& value) {
  return is_plain_text(value) ? value : json_quote(unexpanded(value));
}

std::string yaml_text(Duration value) { return format_duration(value); }
std::string yaml_text(ShortDuration value) { return format_short_duration(value); }
std::string yaml_text(ByteSize value) { return format_byte_size(value); }
std::string yaml_text(const TextOrList& value) {
  return value.is_list ? yaml_flow(value.items) : yaml_text(value.items.front());
}
std::string yaml_text(const FreeBlock& value) { return value.flow; }
// JSON is YAML in flow style.
std::string yaml_text(const JsonBlock& value) { return unexpanded(value.json); }
std::string yaml_key(const std::string& key) { return is_plain_text(key) ? key : json_quote(key); }

}  // namespace retort::launch
