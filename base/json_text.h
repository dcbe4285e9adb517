// Writing small JSON objects (metrics, status lines) without a JSON library in headers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace retort {

// `text` as a JSON string with its quotes; bytes that are not UTF-8 are kept as they are.
std::string json_quote(std::string_view text);
// The shortest text that reads back as the same double; "null" for NaN and infinities.
std::string json_number(double value);

// "[a, b]" of what `format` makes of each value, which is already JSON.
template <class Values, class Format>
std::string json_array(const Values& values, Format&& format) {
  std::string text;
  for (const auto& value : values)
    text += (text.empty() ? "[" : ", ") + format(value);
  return text.empty() ? "[]" : text + "]";
}

// How deep arrays and objects stand in each other in JSON text, of malformed text at least as deep
// as a parser gets. Whoever copies or prints what a stranger wrote asks this first: a JSON library
// goes down one call for each level.
int json_nesting(std::string_view text);
inline constexpr int kMaxJsonNesting = 100;

// Builds one JSON object on one line, in the order of the calls.
class JsonLine {
 public:
  JsonLine& add(std::string_view key, double value) { return raw(key, json_number(value)); }
  JsonLine& add(std::string_view key, int64_t value) { return raw(key, std::to_string(value)); }
  JsonLine& add(std::string_view key, int value) { return raw(key, std::to_string(value)); }
  JsonLine& add(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonLine& add(std::string_view key, std::string_view value) {
    return raw(key, json_quote(value));
  }
  JsonLine& add(std::string_view key, const char* value) { return raw(key, json_quote(value)); }
  // `json` is already JSON.
  JsonLine& raw(std::string_view key, std::string_view json);
  std::string str() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

}  // namespace retort
