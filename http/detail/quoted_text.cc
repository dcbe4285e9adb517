#include "http/detail/quoted_text.h"

#include <cstddef>

#include "base/printable.h"

namespace retort::http::detail {
namespace {

constexpr size_t kShownCharacters = 200;

// A server's bytes are of no encoding that is known: what is not ASCII is an escape.
bool is_plain(char c) { return c >= 0x20 && c < 0x7f; }

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
  for (const char c : safe.substr(0, kShownCharacters)) {
    if (is_plain(c))
      escaped += c;
    else
      append_escape(escaped, c);
  }
  return escaped + (safe.size() > kShownCharacters ? "'..." : "'");
}

}  // namespace retort::http::detail
