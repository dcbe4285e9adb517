#include "base/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace retort {

std::string json_quote(std::string_view text) {
  // RFC 8259 wants quotes, backslashes and control characters escaped, nothing else.
  std::string out = "\"";
  for (char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          char escaped[8];
          std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
          out += escaped;
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[40];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, result.ptr};
}

int json_nesting(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\')
      ++i;  // whatever is escaped, a quote too
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == '[' || c == '{'))
      deepest = std::max(deepest, ++depth);
    else if (!in_string && (c == ']' || c == '}'))
      --depth;
  }
  return deepest;
}

JsonLine& JsonLine::raw(std::string_view key, std::string_view json) {
  if (!body_.empty()) body_ += ", ";
  body_ += json_quote(key);
  body_ += ": ";
  body_ += json;
  return *this;
}

}  // namespace retort
