#include "http/detail/shown.h"

#include <algorithm>
#include <cstddef>

namespace retort::http::detail {
namespace {

constexpr size_t kShownCharacters = 200;
constexpr char kHexDigits[] = "0123456789abcdef";

void append_escaped(std::string& to, char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == '\n') {
    to += "\\n";
  } else if (c == '\r') {
    to += "\\r";
  } else if (c == '\t') {
    to += "\\t";
  } else if (byte >= 0x20 && byte < 0x7f) {
    to += c;
  } else {
    to += "\\x";
    to += kHexDigits[byte >> 4];
    to += kHexDigits[byte & 15];
  }
}

}  // namespace

std::string without(std::string_view secret, std::string text) {
  if (secret.empty()) return text;
  for (size_t at = text.find(secret); at != std::string::npos; at = text.find(secret, at + 3))
    text.replace(at, secret.size(), "***");
  return text;
}

// The secret goes first: half of it may stand before the cut.
std::string shown(std::string_view text, std::string_view secret) {
  if (text.empty()) return "nothing";
  const std::string safe = without(secret, std::string(text));
  std::string escaped = "'";
  for (const char c : safe.substr(0, kShownCharacters))
    append_escaped(escaped, c);
  return escaped + (safe.size() > kShownCharacters ? "'..." : "'");
}

}  // namespace retort::http::detail
