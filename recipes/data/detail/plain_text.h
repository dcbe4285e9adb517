// The many signs of Unicode for one thing, as the one that TeX or ASCII has for it.
#pragma once

#include <string>
#include <string_view>

namespace retort::data::detail {

// Stands for bytes that are no UTF-8 and for signs whose meaning for a number is not known: what
// they touch is not read.
inline constexpr char kUnknownSign = '\x01';
// Stands for arrows, quotes, long dashes and pictures, which end what stands before them.
inline constexpr char kSeparator = '\x02';

// `text` with fullwidth forms and digits of other scripts as ASCII, minus signs and short dashes as
// "-", products as "*", "²" as "^{2}", "½" as "\frac{1}{2}", roots, pi, infinity and relations as
// commands of TeX, narrow spaces as "\,", currencies as "$". Letters of other scripts stay as they
// are.
std::string plain_text(std::string_view text);

}  // namespace retort::data::detail
