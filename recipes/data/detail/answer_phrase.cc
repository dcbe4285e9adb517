#include "recipes/data/detail/answer_phrase.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace retort::data::detail {
namespace {

using Tokens = std::span<const Token>;

bool is_digits(const Token& token) { return token.kind == TokenKind::kNumber; }
bool has_number(Tokens tokens) { return std::any_of(tokens.begin(), tokens.end(), is_digits); }
bool opens(const Token& token) {
  return token.is_sign('(') || token.is_sign('[') || token.is_sign('{') ||
         token.kind == TokenKind::kSetOpen;
}
bool closes(const Token& token) {
  return token.is_sign(')') || token.is_sign(']') || token.is_sign('}') ||
         token.kind == TokenKind::kSetClose;
}

// Returns the last place of `sign` outside of brackets, or tokens.size().
size_t last_outside(Tokens tokens, char sign) {
  size_t found = tokens.size();
  int depth = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    depth += opens(tokens[i]) ? 1 : closes(tokens[i]) ? -1 : 0;
    if (depth == 0 && tokens[i].is_sign(sign)) found = i;
  }
  return found;
}

// Returns the side of an equation that says its value: the right one, or the left one of "5 = x".
// What is no equation comes back whole. Several unknowns ("x = 5, y = 7") give nothing, a chain of
// working ("2 + 3 = 5, 5 * 2 = 10") its last.
std::optional<Tokens> side_of_equation(Tokens tokens) {
  if (last_outside(tokens, '=') == tokens.size()) return tokens;
  if (const size_t comma = last_outside(tokens, ','); comma != tokens.size()) {
    tokens = tokens.subspan(comma + 1);
    const size_t equals = last_outside(tokens, '=');
    if (equals == tokens.size() || !has_number(tokens.first(equals))) return std::nullopt;
  }

  const size_t equals = last_outside(tokens, '=');
  const Tokens left = tokens.first(equals);
  const Tokens right = tokens.subspan(equals + 1);
  if (std::any_of(left.begin(), left.end(), joins_numbers)) return std::nullopt;
  const bool only_name = right.size() == 1 && right[0].kind == TokenKind::kLetter;
  return only_name ? left : right;
}

// Reads a box, of one line: words before the number may name it, units may follow, nothing else.
std::optional<FoundValue> whole_value(Tokens tokens) {
  const Tokens all = tokens;
  while (!tokens.empty() && tokens.back().is(TokenKind::kStop, "."))
    tokens = tokens.first(tokens.size() - 1);
  const std::optional<Tokens> side = side_of_equation(tokens);
  if (!side) return std::nullopt;

  Tokens rest = *side;
  while (!rest.empty() && !rest.front().is_math()) {
    if (joins_numbers(rest.front()) || changes_number(rest.front())) return std::nullopt;
    rest = rest.subspan(1);
  }
  std::optional<ReadValue> read = read_value(rest);
  if (!read || read->num_tokens != rest.size()) return std::nullopt;
  return FoundValue{std::move(read->value), static_cast<size_t>(rest.data() - all.data())};
}

// [begin, end) of the formula around a number.
struct Phrase {
  size_t begin, end;
};

// Returns the phrase as far as signs, numbers and single letters reach.
Phrase phrase_around(Tokens tokens, size_t number) {
  Phrase phrase{number, number + 1};
  while (phrase.begin > 0 && tokens[phrase.begin - 1].is_math())
    --phrase.begin;
  while (phrase.end < tokens.size() && tokens[phrase.end].is_math())
    ++phrase.end;
  return phrase;
}

// Drops brackets that belong to the sentence, not to the formula: "(the answer is 5)", "B) 5". One
// that is open where the text ends stays, because it was cut: "(1, 2".
void drop_unmatched(Tokens tokens, size_t number, Phrase& phrase) {
  std::vector<size_t> open;
  for (size_t i = phrase.begin; i < phrase.end; ++i) {
    if (tokens[i].is_sign('(') || tokens[i].is_sign('[')) open.push_back(i);
    if (!tokens[i].is_sign(')') && !tokens[i].is_sign(']')) continue;
    if (!open.empty()) {
      open.pop_back();
    } else if (i < number) {
      phrase.begin = i + 1;
    } else {
      phrase.end = i;
    }
  }
  for (const size_t i : open) {
    if (i > number) {
      phrase.end = std::min(phrase.end, i);
    } else if (i >= phrase.begin && phrase.end < tokens.size()) {
      phrase.begin = i + 1;
    }
  }
}

bool is_decoration(const Token& token) {
  return token.is_sign(',') || token.is_sign('*') || token.is_sign('_') || token.is_sign('=') ||
         token.is(TokenKind::kSign, "**");
}

// Drops commas of the sentence, marks of Markdown ("**42**", "| 42 |"), and letters that name
// something ("Option B 5").
void drop_decoration(Tokens tokens, size_t number, Phrase& phrase) {
  const auto is_bar = [&](size_t bar, size_t behind) {
    return tokens[bar].is_sign('|') && (behind >= tokens.size() || tokens[behind].spaced);
  };
  while (phrase.begin < number &&
         (is_decoration(tokens[phrase.begin]) || is_bar(phrase.begin, phrase.begin + 1)))
    ++phrase.begin;

  const bool has_words = std::any_of(tokens.begin(), tokens.end(), [](const Token& token) {
    return token.kind == TokenKind::kWord;
  });
  while (phrase.end > number + 1) {
    const size_t last = phrase.end - 1;
    const bool hyphen = tokens[last].is_sign('-') && !tokens[last].spaced &&
                        phrase.end < tokens.size() && tokens[phrase.end].kind == TokenKind::kWord &&
                        !tokens[phrase.end].spaced;
    const bool exclaims = tokens[last].is_sign('!') && has_words;
    if (!is_decoration(tokens[last]) && !is_bar(last, last) && !hyphen && !exclaims) break;
    --phrase.end;
  }

  const Token& first = tokens[phrase.begin];
  const bool names = first.kind == TokenKind::kLetter && first.text != "x" && first.text != "X";
  if (names && phrase.begin + 1 == number && tokens[number].spaced) ++phrase.begin;
}

// Drops the brackets of "(3 * 4 = 12)", which would hide the equation.
void drop_brackets_of_equation(Tokens tokens, Phrase& phrase) {
  const Tokens formula = tokens.subspan(phrase.begin, phrase.end - phrase.begin);
  if (formula.size() < 3 || !formula.front().is_sign('(') || !formula.back().is_sign(')')) return;
  const Tokens inside = formula.subspan(1, formula.size() - 2);
  if (last_outside(inside, '=') == inside.size()) return;
  phrase = {phrase.begin + 1, phrase.end - 1};
}

// True for words that make a factor of a number, as in "the square root of 5", "10 to the power of
// 6", "20 percent of 50", "5 and a third".
bool is_factor(const Token& token) {
  constexpr std::array<std::string_view, 9> kFactors{
      "root", "power", "percent", "quarter", "quarters", "third", "fourth", "fifth", "tenth"};
  return changes_number(token) ||
         (token.kind == TokenKind::kWord &&
          std::find(kFactors.begin(), kFactors.end(), token.text) != kFactors.end());
}

// True for units that another number with a smaller one may follow: "5 feet 3 inches".
bool has_smaller_units(const Token& token) {
  constexpr std::array<std::string_view, 25> kUnits{
      "feet",   "foot", "ft",      "hours",  "hour",    "hr",     "hrs",   "minutes", "minute",
      "mins",   "days", "day",     "weeks",  "week",    "months", "month", "years",   "year",
      "pounds", "lbs",  "dollars", "dollar", "degrees", "yards",  "meters"};
  return token.kind == TokenKind::kWord &&
         std::find(kUnits.begin(), kUnits.end(), token.text) != kUnits.end();
}

// True if words join another number to the one that begins at `begin`: "5 or x = 7", "3 out of 4",
// "5 apples or 7", "5 feet 3". So does the root of "the square root of 5".
bool is_joined_before(Tokens tokens, size_t begin) {
  if (begin > 1 && has_smaller_units(tokens[begin - 1]) && is_digits(tokens[begin - 2]))
    return true;
  size_t at = begin;
  while (at > 0 && begin - at < 3 && joins_numbers(tokens[at - 1]))
    --at;
  if (at == begin || at == 0) return false;
  const Token& before = tokens[at - 1];
  if (is_factor(before)) return true;
  const auto ends_number = [](const Token& token) {
    return is_digits(token) || closes(token) || token.kind == TokenKind::kUnit;
  };
  if (ends_number(before)) return true;
  // An equation may end with its unknown: "5 = x or 7 = x".
  if (before.kind == TokenKind::kLetter && at > 1 && tokens[at - 2].is_sign('=')) return true;
  if (at < 2 || !ends_number(tokens[at - 2])) return false;
  return before.is_sign(',') || has_smaller_units(before) ||
         (tokens[at].is(TokenKind::kWord, "or") && before.kind == TokenKind::kWord);
}

// True if what follows a number and its unit makes another answer of them: "or 43", "and a half".
bool is_joined_behind(Tokens behind) {
  size_t at = 0;
  while (at < behind.size() && joins_numbers(behind[at]))
    ++at;
  if (at == behind.size()) return false;
  if (at == 0) return is_digits(behind[0]);  // "5 feet 3"
  const Tokens next = behind.subspan(at, std::min<size_t>(2, behind.size() - at));
  const bool adds = behind[0].text == "and" || behind[0].text == "to";
  if (adds && std::any_of(next.begin(), next.end(), is_factor)) return true;
  return is_digits(next[0]) || next[0].is_sign('-') ||
         (next.size() == 2 && next[0].kind == TokenKind::kLetter && next[1].is_sign('='));
}

}  // namespace

std::optional<FoundValue> find_value(Tokens tokens, AnswerPlace place) {
  if (place == AnswerPlace::kWhole) return whole_value(tokens);
  if (!has_number(tokens)) return std::nullopt;

  // The answer is the formula around the first or last number. Punctuation and brackets of the
  // sentence are peeled off it, since they would make it unreadable as a value.
  const bool first = place == AnswerPlace::kFirst;
  const auto found = first ? std::find_if(tokens.begin(), tokens.end(), is_digits)
                           : std::find_if(tokens.rbegin(), tokens.rend(), is_digits).base() - 1;
  const auto number = static_cast<size_t>(found - tokens.begin());
  Phrase phrase = phrase_around(tokens, number);
  const size_t math_end = phrase.end;
  drop_unmatched(tokens, number, phrase);
  drop_decoration(tokens, number, phrase);
  drop_brackets_of_equation(tokens, phrase);

  // No word before an equation of numbers joins its result: "in 24 / 4 = 6 hours".
  const Tokens whole = tokens.subspan(phrase.begin, phrase.end - phrase.begin);
  const size_t equals = last_outside(whole, '=');
  const bool is_working = equals < whole.size() && has_number(whole.first(equals)) &&
                          has_number(whole.subspan(equals + 1));
  if (!is_working && is_joined_before(tokens, phrase.begin)) return std::nullopt;
  const std::optional<Tokens> side = side_of_equation(whole);
  if (!side) return std::nullopt;

  // The words behind the formula may hold its unit, but not those behind a comma: "42, not 43".
  std::vector<Token> formula(side->begin(), side->end());
  const size_t num_needed = formula.size();
  const bool at_comma = phrase.end < math_end && tokens[phrase.end].is_sign(',');
  for (size_t i = math_end; !at_comma && i < tokens.size(); ++i) {
    if (tokens[i].kind == TokenKind::kStop || tokens[i].is_sign(',')) break;
    formula.push_back(tokens[i]);
  }
  std::optional<ReadValue> read = read_value(formula);
  if (!read || read->num_tokens < num_needed) return std::nullopt;
  if (is_joined_behind(Tokens(formula).subspan(read->num_tokens))) return std::nullopt;
  return FoundValue{std::move(read->value), static_cast<size_t>(side->data() - tokens.data())};
}

}  // namespace retort::data::detail
