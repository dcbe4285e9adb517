// Characters by their numbers, as escapes of texts name them. Private to models/text.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace retort::models::detail {

// `count` hexadecimal digits and nothing else.
inline std::optional<uint32_t> hex_value(std::string_view digits, size_t count) {
  uint32_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, value, 16);
  if (digits.size() != count || read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

// Appends the character in UTF-8; false for a half of a surrogate pair and beyond U+10FFFF, which
// UTF-8 has not.
inline bool append_utf8(uint32_t point, std::string& to) {
  if (point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return false;
  const auto byte = [&](uint32_t value) { to += static_cast<char>(value); };
  const auto rest = [&](int shift) { byte(0x80 | ((point >> shift) & 0x3F)); };
  if (point < 0x80) {
    byte(point);
  } else if (point < 0x800) {
    byte(0xC0 | (point >> 6));
    rest(0);
  } else if (point < 0x10000) {
    byte(0xE0 | (point >> 12));
    rest(6);
    rest(0);
  } else {
    byte(0xF0 | (point >> 18));
    rest(12);
    rest(6);
    rest(0);
  }
  return true;
}

}  // namespace retort::models::detail
