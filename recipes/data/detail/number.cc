#include "recipes/data/detail/number.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace retort::data::detail {
namespace {

constexpr size_t kMaxDigits = 1000;
constexpr int kMaxExponent = 1000;
constexpr int kMaxPi = 1000;

MaybeNumber bounded(Number number) {
  const size_t limbs = std::max(
      {number.numerator.num_limbs(), number.denominator.num_limbs(), number.root.num_limbs()});
  if (limbs > kMaxLimbs || std::abs(number.pi) > kMaxPi) return std::nullopt;
  return number;
}

bool is_fraction(const Number& value) {
  return !value.infinite && value.root.is_one() && value.pi == 0;
}

// Reads the part of a decimal number behind its digits: "e3", "E-12".
std::optional<int> read_exponent(std::string_view text) {
  if (text.empty()) return 0;
  text.remove_prefix(1);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
  if (text.size() > 4) return std::nullopt;
  int exponent = 0;
  for (const char digit : text)
    exponent = exponent * 10 + (digit - '0');
  if (exponent > kMaxExponent) return std::nullopt;
  return negative ? -exponent : exponent;
}

}  // namespace

MaybeNumber number_from(std::string_view text) {
  if (text.find('?') != std::string_view::npos) return std::nullopt;
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  const std::optional<int> exponent = read_exponent(text.substr(e));
  if (!exponent) return std::nullopt;
  text = text.substr(0, e);
  if (text.empty()) return std::nullopt;

  // "1.50" is 15 / 10: zeros that say nothing do not count as digits.
  const size_t point = std::min(text.find('.'), text.size());
  std::string_view behind = text.substr(std::min(point + 1, text.size()));
  behind = behind.substr(0, behind.find_last_not_of('0') + 1);
  std::string digits = std::string(text.substr(0, point)) + std::string(behind);
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.size() > kMaxDigits || behind.size() > kMaxDigits) return std::nullopt;

  Number number;
  number.numerator = Natural::from_digits(digits);
  const int shift = *exponent - static_cast<int>(behind.size());
  const Natural scale =
      Natural::from_digits("1" + std::string(static_cast<size_t>(std::abs(shift)), '0'));
  if (shift >= 0) {
    number.numerator = number.numerator * scale;
  } else {
    number.denominator = scale;
  }
  return bounded(std::move(number));
}

Number natural_number(uint32_t value) {
  Number number;
  number.numerator = Natural(value);
  return number;
}

Number pi_number() {
  Number number = natural_number(1);
  number.pi = 1;
  return number;
}

Number infinite_number() {
  Number number;
  number.infinite = true;
  return number;
}

MaybeNumber multiply(const Number& a, const Number& b) {
  if (a.infinite || b.infinite) return std::nullopt;
  return bounded({.negative = a.negative != b.negative,
                  .numerator = a.numerator * b.numerator,
                  .denominator = a.denominator * b.denominator,
                  .root = a.root * b.root,
                  .pi = a.pi + b.pi});
}

MaybeNumber divide(const Number& a, const Number& b) {
  if (b.infinite || b.numerator.is_zero()) return std::nullopt;
  // 1 / sqrt(r) = sqrt(r) / r
  return multiply(a, {.negative = b.negative,
                      .numerator = b.denominator,
                      .denominator = b.numerator * b.root,
                      .root = b.root,
                      .pi = -b.pi});
}

MaybeNumber add_fraction(const Number& whole, const Number& fraction) {
  if (!is_fraction(whole) || !is_fraction(fraction) || whole.negative || fraction.negative)
    return std::nullopt;
  Number sum;
  sum.numerator = whole.numerator * fraction.denominator + fraction.numerator * whole.denominator;
  sum.denominator = whole.denominator * fraction.denominator;
  return bounded(std::move(sum));
}

MaybeNumber power(const Number& base, int exponent) {
  MaybeNumber factor = base;
  if (exponent < 0) factor = divide(natural_number(1), base);
  // 0^0 is left open: it is no value.
  if (exponent == 0 && (base.infinite || base.numerator.is_zero())) return std::nullopt;
  MaybeNumber result = natural_number(1);
  for (int left = std::abs(exponent); left > 0; left /= 2) {
    if (!factor) return std::nullopt;
    if (left % 2 == 1) result = multiply(*result, *factor);
    if (!result) return std::nullopt;
    if (left > 1) factor = multiply(*factor, *factor);
  }
  return result;
}

MaybeNumber square_root(const Number& value) {
  if (!is_fraction(value) || (value.negative && !value.numerator.is_zero())) return std::nullopt;
  // sqrt(a / b) = sqrt(a b) / b
  Number result = natural_number(1);
  result.denominator = value.denominator;
  result.root = value.numerator * value.denominator;
  if (value.numerator.is_zero()) return natural_number(0);
  return bounded(std::move(result));
}

std::optional<int> small_integer(const Number& value) {
  if (!is_whole(value) || value.numerator.num_limbs() > 1) return std::nullopt;
  const uint32_t size = value.numerator.small();
  if (size > static_cast<uint32_t>(kMaxExponent)) return std::nullopt;
  const int integer = static_cast<int>(size);
  return value.negative ? -integer : integer;
}

bool is_whole(const Number& value) { return is_fraction(value) && value.denominator.is_one(); }

bool same_number(const Number& a, const Number& b) {
  if (a.infinite || b.infinite) return a.infinite == b.infinite && a.negative == b.negative;
  if (a.numerator.is_zero() || b.numerator.is_zero())
    return a.numerator.is_zero() && b.numerator.is_zero();
  if (a.negative != b.negative || a.pi != b.pi) return false;
  // The squares are compared, in which the roots are whole numbers.
  const Natural left = a.numerator * b.denominator;
  const Natural right = b.numerator * a.denominator;
  return left * left * a.root == right * right * b.root;
}

}  // namespace retort::data::detail
