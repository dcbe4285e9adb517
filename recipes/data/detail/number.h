// Exact numbers of answers: fractions, with a square root and powers of pi as factors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "recipes/data/detail/natural.h"

namespace retort::data::detail {

// numerator / denominator * sqrt(root) * pi^pi, with its sign. One number has many forms (2/4, 1/2;
// sqrt(4), 2): only same_number() compares. The operations give nothing for what this form does not
// hold, and beyond kMaxLimbs.
struct Number {
  bool negative = false;
  bool infinite = false;  // then nothing else but the sign counts
  Natural numerator, denominator{1};
  Natural root{1};
  int pi = 0;
};

// About 1200 decimal digits: more is no answer to anything, and would cost time.
inline constexpr size_t kMaxLimbs = 128;

using MaybeNumber = std::optional<Number>;

// "12", "1.50", ".5", "1.5e3", "2E-3": without sign or separators. Nothing beyond 1000 digits, or
// for an exponent beyond 1000, or with a "?", by which answer_tokens() says that nobody can tell.
MaybeNumber number_from(std::string_view text);
Number natural_number(uint32_t value);
Number pi_number();
Number infinite_number();

MaybeNumber multiply(const Number& a, const Number& b);
// Nothing for a division by zero.
MaybeNumber divide(const Number& a, const Number& b);
// whole + fraction, both of the sign of neither: "3 1/2"
MaybeNumber add_fraction(const Number& whole, const Number& fraction);
MaybeNumber power(const Number& base, int exponent);
// Nothing for a negative number, and for one that is no fraction.
MaybeNumber square_root(const Number& value);
// A whole number of at most 1000 either way.
std::optional<int> small_integer(const Number& value);
// True if it was written with digits alone, so neither as a fraction nor with a root.
bool is_whole(const Number& value);

bool same_number(const Number& a, const Number& b);

}  // namespace retort::data::detail
