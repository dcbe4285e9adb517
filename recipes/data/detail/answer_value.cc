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

bool is_bracket(const Token& token) {
  return token.kind == TokenKind::kSign && token.text.find_first_of("(){}") == 0;
}

bool is_power(const Token& token) {
  return token.is_sign('^') || token.is(TokenKind::kSign, "**");
}

// True for the signs of "3 * 10^8" in either order, brackets and signs left out.
bool is_scientific(std::span<const Token> tokens) {
  const auto is_digits = [](const Token& token) { return token.kind == TokenKind::kNumber; };
  const auto is_ten_power = [&](std::span<const Token> three) {
    return three[0].is(TokenKind::kNumber, "10") && is_power(three[1]) && is_digits(three[2]);
  };
  if (tokens.size() < 4 || tokens.size() > 5) return false;
  const auto first = tokens.first(3), last = tokens.last(3);
  const bool has_sign = tokens.size() == 5;
  return (is_ten_power(last) && is_digits(tokens[0]) && (!has_sign || tokens[1].is_sign('*'))) ||
         (is_ten_power(first) && is_digits(tokens.back()) && (!has_sign || tokens[3].is_sign('*')));
}

// True for "5/1", "\frac{5}{1}", "\frac51", brackets and signs left out.
bool is_by_one(std::span<const Token> tokens) {
  if (tokens.size() == 3) return tokens[2].is(TokenKind::kNumber, "1");
  return tokens.size() == 2 && tokens[1].text.size() == 2 && tokens[1].text.ends_with('1');
}

// Says how the number is written that these tokens were read as.
Written written_as(std::span<const Token> number) {
  std::vector<Token> tokens;
  bool multiplies = false, divides = false;
  for (size_t i = 0; i < number.size(); ++i) {
    const Token& token = number[i];
    // A bracket right behind a number or another bracket multiplies with what is in it.
    if (token.is_sign('(') && i > 0)
      multiplies |= number[i - 1].kind == TokenKind::kNumber || number[i - 1].is_sign(')') ||
                    number[i - 1].is_sign('}');
    multiplies |= token.is_sign('*');
    divides |= token.is_sign('/') || token.is(TokenKind::kCommand, "frac");
    if (!is_bracket(token) && !token.is_sign('-') && !token.is_sign('+'))
      tokens.push_back(token);
  }
  if (tokens.size() == 1 && tokens[0].kind == TokenKind::kNumber) return Written::kDigits;
  if (multiplies && !is_scientific(tokens)) return Written::kProduct;
  return divides && !is_by_one(tokens) ? Written::kQuotient : Written::kOther;
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

  Written written_since(size_t begin) const {
    return written_as(tokens_.subspan(begin, at_ - begin));
  }

  MaybeValue item() {
    const size_t begin = at_;
    MaybeValue first;
    if (sees('(') || sees('[') || sees(TokenKind::kSetOpen)) {
      first = group();
      if (!first) return std::nullopt;
      if (!first->shape.empty()) return unit(*first) ? first : std::nullopt;
    }
    // A number in brackets by itself may have its unit with it there.
    const size_t end_of_group = at_;
    MaybeNumber number = product(first ? MaybeNumber(first->number) : std::nullopt);
    if (!number) return std::nullopt;
    Value value = number_value(std::move(*number));
    value.written = first && at_ == end_of_group ? first->written : written_since(begin);

    // Numbers with colons between them, as of a time or a ratio, are one value of several parts.
    if (sees(':')) {
      Value times{.number = {}, .parts = {std::move(value)}, .shape = ":", .half_day = {}};
      while (takes(':')) {
        const size_t begin_of_part = at_;
        number = product(std::nullopt);
        if (!number || times.parts.size() >= kMaxParts) return std::nullopt;
        times.parts.push_back(number_value(std::move(*number)));
        times.parts.back().written = written_since(begin_of_part);
      }
      value = std::move(times);
    }
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
    return Value{.number = {}, .parts = std::move(*parts), .shape = shape, .half_day = {}};
  }

  bool begins_factor() const { return sees('(') || sees_command("sqrt") || sees_command("pi"); }

  MaybeNumber product(MaybeNumber first) {
    const bool negative = !first && takes('-');
    if (!first && !negative) takes('+');

    MaybeNumber value = first ? powered(std::move(first)) : mixed();
    bool divided = false;
    while (value) {
      const bool multiplies = takes('*');
      // "1/2 pi" and "6/2*3" are read in two ways, "1/2/2020" is a date
      if (multiplies || (begins_factor() && !divided)) {
        if (divided) return std::nullopt;
        const bool minus = multiplies && takes('-');
        const MaybeNumber next = powered(atom());
        value = next ? multiply(*value, *next) : std::nullopt;
        if (value && minus) value->negative = !value->negative;
      } else if (sees('/') && !is_unit(1)) {
        if (divided) return std::nullopt;
        ++at_;
        divided = true;
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
      // So one writes it: "2 1/2 million".
      if (value.written == Written::kQuotient) value.written = Written::kOther;
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
};

using SameNumber = bool (*)(const Value&, const Value&);

bool same(const Value& a, const Value& b, SameNumber same_leaf);

bool same_set(const std::vector<Value>& a, const std::vector<Value>& b, SameNumber same_leaf) {
  std::vector<bool> taken(b.size());
  for (const Value& part : a) {
    size_t i = 0;
    while (i < b.size() && (taken[i] || !same(part, b[i], same_leaf)))
      ++i;
    if (i == b.size()) return false;
    taken[i] = true;
  }
  return true;
}

bool same(const Value& a, const Value& b, SameNumber same_leaf) {
  if (a.shape != b.shape || a.parts.size() != b.parts.size()) return false;
  // Where one of the two does not say which half of the day it means, the question did.
  if (a.half_day != b.half_day && !a.half_day.empty() && !b.half_day.empty()) return false;
  if (a.shape.empty()) return same_leaf(a, b);
  if (a.shape == "{}") return same_set(a.parts, b.parts, same_leaf);
  return std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(),
                    [&](const Value& x, const Value& y) { return same(x, y, same_leaf); });
}

}  // namespace

bool same_value(const Value& a, const Value& b) {
  return same(a, b, [](const Value& x, const Value& y) { return same_number(x.number, y.number); });
}

bool says_value(const Value& value, const Value& wanted) {
  return same(value, wanted, [](const Value& x, const Value& y) {
    const bool undone = y.written == Written::kDigits &&
                        (x.written == Written::kProduct ||
                         (x.written == Written::kQuotient && is_whole(y.number)));
    return !undone && same_number(x.number, y.number);
  });
}

std::optional<ReadValue> read_value(std::span<const Token> tokens) {
  Parser parser(tokens);
  std::optional<std::vector<Value>> parts = parser.list();
  if (!parts) return std::nullopt;
  const bool one = parts->size() == 1;
  Value value =
      one ? std::move(parts->front())
          : Value{.number = {}, .parts = std::move(*parts), .shape = "()", .half_day = {}};
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
