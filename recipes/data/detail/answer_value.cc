#include "recipes/data/detail/answer_value.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace retort::data::detail {
namespace {

constexpr int kMaxValueDepth = 32;
constexpr size_t kMaxParts = 256;
// Sets are compared each element with each, so they are kept small.
constexpr size_t kMaxSetParts = 32;

constexpr std::array<std::string_view, 15> kJoiningWords{
    "and",   "or",      "to",  "of",      "out",    "over", "by", "plus",
    "times", "divided", "nor", "through", "versus", "vs",   "in"};
constexpr std::array<std::string_view, 13> kChangingWords{
    "half",    "halves", "thirds", "fourths", "fifths",     "sixths", "sevenths",
    "eighths", "ninths", "tenths", "squared", "hundredths", "cubed"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kScales{
    {{"hundred", "100"},
     {"thousand", "1000"},
     {"million", "1000000"},
     {"billion", "1000000000"},
     {"trillion", "1000000000000"}}};
// One letter behind a number is a variable but for these units.
constexpr std::string_view kUnitLetters = "mgshLlVWNJKCF";

using MaybeValue = std::optional<Value>;

Value number_value(Number number) {
  Value value;
  value.number = std::move(number);
  return value;
}

Value of_parts(std::string shape, std::vector<Value> parts) {
  const bool product = std::ranges::any_of(parts, &Value::product);
  const bool quotient = std::ranges::any_of(parts, &Value::quotient);
  return {.number = {},
          .parts = std::move(parts),
          .shape = std::move(shape),
          .half_day = {},
          .product = product,
          .quotient = quotient};
}

class Parser {
 public:
  explicit Parser(std::span<const Token> tokens) : tokens_(tokens) {}

  size_t num_taken() const { return at_; }

  // Reads items with commas between them, in brackets or not.
  std::optional<std::vector<Value>> list() {
    std::vector<Value> parts;
    do {
      MaybeValue part = item();
      if (!part || parts.size() >= kMaxParts) return std::nullopt;
      parts.push_back(std::move(*part));
    } while (takes(','));
    return parts;
  }

 private:
  const Token* look(size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() ? &tokens_[at_ + ahead] : nullptr;
  }
  bool sees(char sign, size_t ahead = 0) const {
    return look(ahead) != nullptr && look(ahead)->is_sign(sign);
  }
  bool sees(TokenKind kind, size_t ahead = 0) const {
    return look(ahead) != nullptr && look(ahead)->kind == kind;
  }
  bool sees_command(std::string_view name) const {
    return look() != nullptr && look()->is(TokenKind::kCommand, name);
  }
  bool takes(char sign) {
    if (!sees(sign)) return false;
    ++at_;
    return true;
  }

  MaybeValue item() {
    MaybeValue first;
    if (sees('(') || sees('[') || sees(TokenKind::kSetOpen)) {
      first = group();
      if (!first) return std::nullopt;
      if (!first->shape.empty()) return unit(*first) ? first : std::nullopt;
    }
    product_ = first && first->product;
    quotient_ = first && first->quotient;
    MaybeNumber number = product(first ? MaybeNumber(first->number) : std::nullopt);
    if (!number) return std::nullopt;
    Value value = number_value(std::move(*number));

    // Numbers with colons between them, as of a time or a ratio, are one value of several parts.
    if (sees(':')) {
      Value times = of_parts(":", {std::move(value)});
      while (takes(':')) {
        number = product(std::nullopt);
        if (!number || times.parts.size() >= kMaxParts) return std::nullopt;
        times.parts.push_back(number_value(std::move(*number)));
      }
      value = std::move(times);
    }
    value.product = product_;
    value.quotient = quotient_;
    if (!unit(value)) return std::nullopt;
    return value;
  }

  // Reads something in brackets. One number in round ones is that number.
  MaybeValue group() {
    if (depth_ >= kMaxValueDepth) return std::nullopt;
    ++depth_;
    const std::string open = tokens_[at_++].text;
    std::optional<std::vector<Value>> parts = list();
    --depth_;

    const bool closes = open == "{" ? sees(TokenKind::kSetClose) : sees(')') || sees(']');
    if (!parts || !closes) return std::nullopt;
    const std::string shape = open + tokens_[at_++].text;
    if (shape == "()" && parts->size() == 1) return std::move(parts->front());
    if (shape == "{}" && parts->size() > kMaxSetParts) return std::nullopt;
    return of_parts(shape, std::move(*parts));
  }

  bool begins_factor() const { return sees('(') || sees_command("sqrt") || sees_command("pi"); }

  MaybeNumber product(MaybeNumber first) {
    const bool negative = !first && takes('-');
    if (!first && !negative) takes('+');

    int num_plain = 0;  // factors that are neither a power nor a root nor pi
    const auto counted = [&](const auto& read) {
      const bool is_symbol = sees_command("sqrt") || sees_command("pi");
      took_power_ = false;
      MaybeNumber factor = read();
      num_plain += !is_symbol && !took_power_;
      return factor;
    };
    MaybeNumber value = counted([&] { return first ? powered(std::move(first)) : mixed(); });
    bool divided = false;
    while (value) {
      const bool multiplies = takes('*');
      // "1/2 pi" and "6/2*3" are read in two ways, "1/2/2020" is a date
      if (multiplies || (begins_factor() && !divided)) {
        if (divided) return std::nullopt;
        const bool minus = multiplies && takes('-');
        const MaybeNumber next = counted([&] { return powered(atom()); });
        if (num_plain > 1) product_ = true;
        value = next ? multiply(*value, *next) : std::nullopt;
        if (value && minus) value->negative = !value->negative;
      } else if (sees('/') && !is_unit(1)) {
        if (divided) return std::nullopt;
        ++at_;
        divided = quotient_ = true;
        const MaybeNumber next = powered(atom());
        value = next ? divide(*value, *next) : std::nullopt;
      } else {
        break;
      }
    }
    if (value && negative) value->negative = !value->negative;
    return value;
  }

  // Reads "3 1/2" or "3\frac{1}{2}", else a factor.
  MaybeNumber mixed() {
    if (!sees(TokenKind::kNumber)) return powered(atom());
    const bool slash = sees(TokenKind::kNumber, 1) && look(1)->spaced && sees('/', 2) &&
                       sees(TokenKind::kNumber, 3);
    const bool tex = look(1) != nullptr && look(1)->is(TokenKind::kCommand, "frac");
    if (!slash && !tex) return powered(atom());

    const MaybeNumber whole = atom();
    MaybeNumber fraction = atom();
    if (slash && fraction) {
      ++at_;
      const MaybeNumber denominator = atom();
      const bool plain = denominator && is_whole(*fraction) && is_whole(*denominator);
      fraction = plain ? divide(*fraction, *denominator) : std::nullopt;
    }
    if (!whole || !is_whole(*whole) || !fraction) return std::nullopt;
    // A mixed number is a sum of its own: nothing may bind to its fraction alone.
    if (sees('/') || sees('^') || begins_factor()) return std::nullopt;
    return add_fraction(*whole, *fraction);
  }

  MaybeNumber powered(MaybeNumber base) {
    const auto sees_power = [&] {
      return sees('^') || (look() != nullptr && look()->is(TokenKind::kSign, "**"));
    };
    if (!base || !sees_power()) return base;
    ++at_;
    const bool negative = takes('-');
    const MaybeNumber exponent = atom();
    took_power_ = true;
    const std::optional<int> integer = exponent ? small_integer(*exponent) : std::nullopt;
    if (!integer || sees_power()) return std::nullopt;
    return power(*base, negative ? -*integer : *integer);
  }

  MaybeNumber atom() {
    if (depth_ >= kMaxValueDepth) return std::nullopt;
    ++depth_;
    MaybeNumber number = atom_inside();
    --depth_;
    return number;
  }

  MaybeNumber atom_inside() {
    if (sees(TokenKind::kNumber)) return number_from(tokens_[at_++].text);
    if (sees('{') || sees('(')) {
      const char close = sees('{') ? '}' : ')';
      ++at_;
      MaybeNumber inside = product(std::nullopt);
      if (!takes(close)) return std::nullopt;
      return inside;
    }
    if (!sees(TokenKind::kCommand)) return std::nullopt;
    const std::string_view name = tokens_[at_++].text;
    if (name == "pi") return pi_number();
    if (name == "infty") return infinite_number();
    if (name == "frac") return fraction();
    if (name != "sqrt") return std::nullopt;
    const MaybeNumber inside = atom();
    return inside ? square_root(*inside) : std::nullopt;
  }

  // Reads the two arguments of \frac. In TeX \frac12 is 1/2.
  MaybeNumber fraction() {
    quotient_ = true;
    if (sees(TokenKind::kNumber)) {
      const std::string& digits = look()->text;
      if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
      if (digits.size() == 2) {
        ++at_;
        return divide(natural_number(static_cast<uint32_t>(digits[0] - '0')),
                      natural_number(static_cast<uint32_t>(digits[1] - '0')));
      }
      if (digits.size() != 1) return std::nullopt;
    }
    const MaybeNumber numerator = atom();
    if (sees(TokenKind::kNumber) && look()->text.size() != 1) return std::nullopt;
    const MaybeNumber denominator = numerator ? atom() : std::nullopt;
    return denominator ? divide(*numerator, *denominator) : std::nullopt;
  }

  bool is_unit(size_t ahead) const {
    if (sees(TokenKind::kWord, ahead))
      return !joins_numbers(*look(ahead)) && !changes_number(*look(ahead));
    return sees(TokenKind::kUnit, ahead) ||
           (sees(TokenKind::kLetter, ahead) &&
            kUnitLetters.find(look(ahead)->text[0]) != std::string_view::npos);
  }

  // Reads the words behind a number. False for those that make another number of it.
  bool unit(Value& value) {
    if (look() != nullptr && changes_number(*look())) return false;
    if (sees(TokenKind::kWord) && (look()->text == "am" || look()->text == "pm"))
      value.half_day = tokens_[at_++].text;
    for (const auto& [word, factor] : kScales) {
      if (look() == nullptr || !look()->is(TokenKind::kWord, word)) continue;
      const MaybeNumber scale = number_from(factor);
      const MaybeNumber scaled =
          value.shape.empty() && scale ? multiply(value.number, *scale) : std::nullopt;
      if (!scaled) return false;
      value.number = *scaled;
      ++at_;
      break;
    }

    // Units are read over, whatever they are: "m/s^2", "square metres of land".
    bool any = false;
    while (true) {
      const size_t sign = sees('/') || (any && sees('*')) ? 1 : 0;
      if (!is_unit(sign)) return true;
      at_ += sign;
      const bool letter = sees(TokenKind::kLetter);
      ++at_;
      any = true;
      if (letter && takes('^') && !unit_exponent()) return false;
    }
  }
  bool unit_exponent() {
    takes('-');
    const MaybeNumber exponent = atom();
    return exponent && small_integer(*exponent);
  }

  std::span<const Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  // Of the item that is being read: those of its value, and whether its last factor was a power.
  bool product_ = false, quotient_ = false, took_power_ = false;
};

bool same_set(const std::vector<Value>& a, const std::vector<Value>& b) {
  std::vector<bool> taken(b.size());
  for (const Value& part : a) {
    size_t i = 0;
    while (i < b.size() && (taken[i] || !same_value(part, b[i])))
      ++i;
    if (i == b.size()) return false;
    taken[i] = true;
  }
  return true;
}

bool is_whole_value(const Value& value) {
  return value.shape.empty() ? is_whole(value.number)
                             : std::ranges::all_of(value.parts, is_whole_value);
}

}  // namespace

bool leaves_work(const Value& value, const Value& wanted) {
  return (value.product && !wanted.product) || (value.quotient && is_whole_value(wanted));
}

bool same_value(const Value& a, const Value& b) {
  if (a.shape != b.shape || a.parts.size() != b.parts.size()) return false;
  // Where one of the two does not say which half of the day it means, the question did.
  if (a.half_day != b.half_day && !a.half_day.empty() && !b.half_day.empty()) return false;
  if (a.shape.empty()) return same_number(a.number, b.number);
  if (a.shape == "{}") return same_set(a.parts, b.parts);
  return std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), same_value);
}

std::optional<ReadValue> read_value(std::span<const Token> tokens) {
  Parser parser(tokens);
  std::optional<std::vector<Value>> parts = parser.list();
  if (!parts) return std::nullopt;
  const bool one = parts->size() == 1;
  Value value = one ? std::move(parts->front()) : of_parts("()", std::move(*parts));
  return ReadValue{std::move(value), parser.num_taken()};
}

bool joins_numbers(const Token& token) {
  return token.kind == TokenKind::kWord &&
         std::find(kJoiningWords.begin(), kJoiningWords.end(), token.text) != kJoiningWords.end();
}

bool changes_number(const Token& token) {
  return token.kind == TokenKind::kWord && std::find(kChangingWords.begin(), kChangingWords.end(),
                                                     token.text) != kChangingWords.end();
}

}  // namespace retort::data::detail
