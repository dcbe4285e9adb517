#include "recipes/data/detail/plain_text.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace retort::data::detail {
namespace {

constexpr uint32_t kNoCharacter = 0xffffffff;

// Returns the character that begins at `at`, and moves `at` behind it. kNoCharacter, and one byte
// further, if the bytes there are no UTF-8.
uint32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at++);
  if (first < 0x80) return first;
  const size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  if (first < 0xc2 || first > 0xf4 || at + more > text.size()) return kNoCharacter;

  uint32_t character = first & (0x3f >> more);
  for (size_t i = 0; i < more; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return kNoCharacter;
    character = character << 6 | (byte(at + i) & 0x3f);
  }
  at += more;
  return character;
}

struct Sign {
  uint32_t character;
  std::string_view plain;
};
// The signs are sorted by character for a binary search, so things of one kind stand apart.
constexpr std::array kSigns{
    // Latin-1 and Greek
    Sign{0x00a0, "\\,"},
    Sign{0x00a2, "$"},
    Sign{0x00a3, "$"},
    Sign{0x00a5, "$"},
    Sign{0x00b0, "^\\circ "},
    Sign{0x00b1, "\\pm "},
    Sign{0x00b7, "*"},
    Sign{0x00bc, "\\frac{1}{4}"},
    Sign{0x00bd, "\\frac{1}{2}"},
    Sign{0x00be, "\\frac{3}{4}"},
    Sign{0x00d7, "*"},
    Sign{0x00f7, "/"},
    Sign{0x03c0, "\\pi "},

    // spaces, dashes and punctuation
    Sign{0x2002, " "},
    Sign{0x2003, " "},
    Sign{0x2007, "\\,"},
    Sign{0x2008, "\\,"},
    Sign{0x2009, "\\,"},
    Sign{0x200a, "\\,"},
    Sign{0x200b, ""},
    Sign{0x2010, "-"},
    Sign{0x2011, "-"},
    Sign{0x2012, "-"},
    Sign{0x2013, "-"},
    Sign{0x2019, "'"},
    Sign{0x2026, "..."},
    Sign{0x202f, "\\,"},
    Sign{0x2044, "/"},
    Sign{0x2060, ""},

    // currencies and fractions
    Sign{0x20ac, "$"},
    Sign{0x20b9, "$"},
    Sign{0x2153, "\\frac{1}{3}"},
    Sign{0x2154, "\\frac{2}{3}"},
    Sign{0x2155, "\\frac{1}{5}"},
    Sign{0x2156, "\\frac{2}{5}"},
    Sign{0x2157, "\\frac{3}{5}"},
    Sign{0x2158, "\\frac{4}{5}"},
    Sign{0x2159, "\\frac{1}{6}"},
    Sign{0x215a, "\\frac{5}{6}"},
    Sign{0x215b, "\\frac{1}{8}"},
    Sign{0x215c, "\\frac{3}{8}"},
    Sign{0x215d, "\\frac{5}{8}"},
    Sign{0x215e, "\\frac{7}{8}"},

    // operators and relations
    Sign{0x2212, "-"},
    Sign{0x2215, "/"},
    Sign{0x2217, "*"},
    Sign{0x2219, "*"},
    Sign{0x221a, "\\sqrt "},
    Sign{0x221e, "\\infty "},
    Sign{0x2236, ":"},
    Sign{0x2248, "\\approx "},
    Sign{0x22c5, "*"},

    // forms for other scripts
    Sign{0x3000, " "},
    Sign{0xfe63, "-"},
    Sign{0xfeff, ""},
};

// Returns the value of a superscript digit, or -1.
int superscript(uint32_t character) {
  if (character == 0xb9) return 1;
  if (character == 0xb2 || character == 0xb3) return static_cast<int>(character - 0xb0);
  if (character == 0x2070) return 0;
  if (character >= 0x2074 && character <= 0x2079) return static_cast<int>(character - 0x2070);
  return -1;
}

// Returns the value of a digit of a script other than ASCII's, or -1.
int other_digit(uint32_t character) {
  for (const uint32_t zero : {0x0660U, 0x06f0U, 0x0966U})
    if (character >= zero && character < zero + 10) return static_cast<int>(character - zero);
  return -1;
}

bool separates(uint32_t character) {
  const auto between = [&](uint32_t first, uint32_t last) {
    return character >= first && character <= last;
  };
  return between(0x2014, 0x206f) || between(0x2190, 0x21ff) || between(0x2500, 0x27bf) ||
         between(0x2b00, 0x2bff) || between(0x3001, 0x303f) || between(0x1f000, 0x1faff) ||
         between(0xfe00, 0xfe0f) || character == 0xab || character == 0xbb;
}

// True for signs of mathematics without a place in kSigns, and for characters of which nothing is
// known.
bool is_unknown(uint32_t character) {
  const auto between = [&](uint32_t first, uint32_t last) {
    return character >= first && character <= last;
  };
  return between(0x80, 0xbf) || between(0x2070, 0x209f) || between(0x2150, 0x218f) ||
         between(0x2200, 0x24ff) || between(0x27c0, 0x2aff) || between(0x1d400, 0x1d7ff) ||
         between(0xe000, 0xf8ff) || between(0xd800, 0xdfff) || character >= 0xfffd;
}

// Superscripts that follow one another are one exponent: "10⁻¹²" is "10^{-12}".
bool add_superscripts(std::string_view text, size_t& at, std::string& plain) {
  std::string digits;
  size_t end = at;
  for (size_t next = at; next < text.size(); end = next) {
    const uint32_t character = next_character(text, next);
    if (character == 0x207b && digits.empty()) {
      digits += '-';
    } else if (superscript(character) >= 0) {
      digits += static_cast<char>('0' + superscript(character));
    } else {
      break;
    }
  }
  if (digits.empty() || digits == "-") return false;
  plain += "^{" + digits + "}";
  at = end;
  return true;
}

}  // namespace

std::string plain_text(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t character = next_character(text, at);
    if (character < 0x80) {
      const bool control = character < ' ' && character != '\n' && character != '\t';
      plain += control ? (character == '\r' ? ' ' : kUnknownSign) : static_cast<char>(character);
      continue;
    }

    at = begin;
    if (add_superscripts(text, at, plain)) continue;
    const uint32_t other = next_character(text, at);
    const auto sign =
        std::lower_bound(kSigns.begin(), kSigns.end(), other,
                         [](const Sign& one, uint32_t wanted) { return one.character < wanted; });
    if (sign != kSigns.end() && sign->character == other) {
      plain += sign->plain;
    } else if (other >= 0xff01 && other <= 0xff5e) {
      plain += static_cast<char>(other - 0xff01 + '!');  // fullwidth
    } else if (other_digit(other) >= 0) {
      plain += static_cast<char>('0' + other_digit(other));
    } else if (separates(other)) {
      plain += kSeparator;
    } else if (other == kNoCharacter || is_unknown(other)) {
      plain += kUnknownSign;
    } else {
      plain += text.substr(begin, at - begin);
    }
  }
  return plain;
}

}  // namespace retort::data::detail
