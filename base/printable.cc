#include "base/printable.h"

namespace retort {
namespace {

// Returns how many bytes the UTF-8 character at `at` has, or 0 if there is none.
size_t utf8_size_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || at + size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;

  // The second byte tells an overlong form, a surrogate and what is above U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f)) return 0;
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) return 0;
  return size;
}

}  // namespace

void append_escape(std::string& to, char c) {
  constexpr const char* kHexDigits = "0123456789abcdef";
  if (c == '\n') {
    to += "\\n";
  } else if (c == '\r') {
    to += "\\r";
  } else if (c == '\t') {
    to += "\\t";
  } else {
    const auto byte = static_cast<unsigned char>(c);
    to += "\\x";
    to += kHexDigits[byte >> 4];
    to += kHexDigits[byte & 15];
  }
}

bool is_utf8(std::string_view text) { return utf8_prefix(text) == text.size(); }

size_t utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t size = utf8_size_at(text, at);
    if (size == 0) break;
    at += size;
  }
  return at;
}

std::string printable(std::string_view text, LineEnds line_ends) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_size_at(text, at);
    const auto first = static_cast<unsigned char>(text[at]);
    const bool is_kept = line_ends == LineEnds::kKept && (text[at] == '\n' || text[at] == '\t');
    const bool is_c0 = (first < 0x20 && !is_kept) || first == 0x7f;
    // U+0080 to U+009F: some terminals take U+009B for ESC [.
    const bool is_c1 =
        size == 2 && first == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0;
    const size_t taken = size == 0 ? 1 : size;
    for (size_t i = 0; i < taken; ++i) {
      if (size == 0 || is_c0 || is_c1)
        append_escape(result, text[at + i]);
      else
        result += text[at + i];
    }
    at += taken;
  }
  return result;
}

}  // namespace retort
