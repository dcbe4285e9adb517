#include "recipes/data/answer.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recipes/data/detail/answer_phrase.h"
#include "recipes/data/detail/answer_tokens.h"
#include "recipes/data/detail/answer_value.h"

namespace retort::data {
namespace {

using detail::AnswerPlace;
using detail::Token;
using detail::TokenKind;

constexpr std::string_view kMark = "####";
constexpr std::string_view kBox = "\\boxed{";
// A text of more tokens than this is no answer by itself.
constexpr size_t kMaxWrittenTokens = 64;
// Formulas behind an answer that may explain it.
constexpr int kMaxExplanations = 4;

struct Answer {
  std::optional<detail::Value> value;
  std::vector<Token> before;   // what stands before its formula
  std::vector<Token> written;  // where there is no value; may be empty
};

// The content of the last \boxed{...}. If that was cut, it is all of the rest of the text, and
// `ends` is false.
struct Box {
  std::string_view inside;
  bool ends = false;
};

std::optional<Box> last_box(std::string_view text) {
  const size_t begin = text.rfind(kBox);
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + kBox.size());
  int64_t depth = 1;
  for (size_t end = 0; end < text.size(); ++end) {
    if (text[end] == '\\') {
      ++end;
    } else if (text[end] == '{') {
      ++depth;
    } else if (text[end] == '}' && --depth == 0) {
      return Box{text.substr(0, end), true};
    }
  }
  return Box{text, false};
}

// Returns the tokens themselves if they have digits and are one line, else none.
std::vector<Token> written_answer(std::vector<Token> tokens) {
  while (!tokens.empty() && tokens.back().kind == TokenKind::kStop)
    tokens.pop_back();
  const auto has = [&](auto&& wanted) { return std::any_of(tokens.begin(), tokens.end(), wanted); };
  const bool is_line = !has([](const Token& token) { return token.text == "\n"; });
  const bool has_digits = has([](const Token& token) { return token.kind == TokenKind::kNumber; });
  if (!is_line || !has_digits || tokens.size() > kMaxWrittenTokens) return {};
  return tokens;
}

// Returns the last line with anything in it, or, with `first`, the first one, without white space
// around it.
std::string_view line_of(std::string_view text, bool first) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  text = text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
  const size_t end = first ? text.find('\n') : text.rfind('\n');
  if (end == std::string_view::npos) return text;
  return line_of(first ? text.substr(0, end) : text.substr(end + 1), first);
}

bool is_white(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Returns the length of the bullet that a line of a list begins with, and of the space behind it,
// or 0: "- ", or a short dash, which stands for a minus elsewhere.
size_t bullet_of(std::string_view line) {
  for (const std::string_view dash : {"- ", "\u2010 ", "\u2013 "})
    if (line.starts_with(dash)) return dash.size();
  return 0;
}

// The text with spaces in place of its bullets: the "-" of "- 7" is no sign where it begins a line
// of several, unless the line before ends in a sign that a formula goes on behind.
std::string without_bullets(std::string_view text) {
  std::string result(text);
  char before = '\n';  // the last sign of the lines before; a line break: there is none
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (is_white(line)) continue;

    const size_t indent = line.find_first_not_of(" \t");
    const size_t bullet = bullet_of(line.substr(indent));
    const bool goes_on =
        std::string_view("=+-*/^(,[{$&\\<>").find(before) != std::string_view::npos;
    const bool alone = before == '\n' && is_white(text.substr(std::min(end + 1, text.size())));
    if (bullet > 0 && !goes_on && !alone) result.replace(begin + indent, bullet, bullet, ' ');
    before = line[line.find_last_not_of(" \t\r")];
  }
  return result;
}

Answer answer_of(std::string_view text) {
  AnswerPlace place = AnswerPlace::kLast;
  const size_t mark = text.rfind(kMark);
  if (mark != std::string_view::npos) {
    place = AnswerPlace::kFirst;
    text.remove_prefix(mark + kMark.size());
  }
  if (const std::optional<Box> box = last_box(text)) {
    // A box behind a mark is the answer: the mark may be a heading, which four hashes are, too.
    if (!box->ends) return {};
    place = AnswerPlace::kWhole;
    text = box->inside;
  }

  // A bullet is only looked for in running text: what stands behind a mark or in a box is the
  // answer itself, where a "-" is a sign.
  std::vector<Token> tokens = place == AnswerPlace::kLast
                                  ? detail::answer_tokens(without_bullets(text))
                                  : detail::answer_tokens(text);

  // TeX breaks lines in a box where it likes. What is compared as it is written keeps them.
  const bool is_box = place == AnswerPlace::kWhole;
  std::vector<Token> broken;
  if (is_box) {
    broken = tokens;
    std::erase_if(tokens, [](const Token& token) { return token.is(TokenKind::kStop, "\n"); });
  }
  std::optional<detail::FoundValue> found = detail::find_value(tokens, place);
  if (!found) {
    std::vector<Token> written = written_answer(std::move(is_box ? broken : tokens));
    return {.value = {}, .before = {}, .written = std::move(written)};
  }
  tokens.resize(found->begin);
  return {.value = std::move(found->value), .before = std::move(tokens), .written = {}};
}

// True for what may stand between an answer and a formula that explains it: "= ", ", which is (".
bool leads_to_formula(const Token& token) {
  using enum TokenKind;
  if (token.kind == kSign && token.text.size() == 1)
    return std::string_view("=([,:-").find(token.text) != std::string_view::npos;
  return token.kind == kLetter || token.kind == kWord || token.kind == kStop ||
         token.kind == kUnknown;
}

// True if the answer says the value. A formula behind it that explains it does not unsay it: in
// "42 = 6 * 7 = 2 * 21" and "42, which is 6 * 7" the first of equal ones is the answer.
bool says(Answer answer, const detail::Value& wanted) {
  for (int steps = 0; answer.value; ++steps) {
    if (detail::says_value(*answer.value, wanted)) return true;
    if (steps == kMaxExplanations || !detail::same_value(*answer.value, wanted)) return false;
    std::vector<Token>& tokens = answer.before;
    while (!tokens.empty() && leads_to_formula(tokens.back()))
      tokens.pop_back();
    std::optional<detail::FoundValue> found = detail::find_value(tokens, AnswerPlace::kLast);
    answer.value.reset();
    if (!found) continue;
    answer.value = std::move(found->value);
    tokens.resize(found->begin);
  }
  return false;
}

bool is_answer(const Answer& answer) { return answer.value || !answer.written.empty(); }

}  // namespace

bool has_answer(std::string_view text) { return is_answer(answer_of(text)); }

bool same_answer(std::string_view completion, std::string_view reference) {
  Answer answer = answer_of(completion);
  const Answer wanted = answer_of(reference);
  if (!is_answer(answer) || !is_answer(wanted)) return false;
  if (answer.value && wanted.value) return says(std::move(answer), *wanted.value);
  return !answer.value && !wanted.value && answer.written == wanted.written;
}

Agreement compare_answers(std::string_view completion, std::string_view reference) {
  if (same_answer(completion, reference)) return Agreement::kSame;
  if (answer_text(completion).empty()) return Agreement::kDifferent;
  const bool both = answer_of(completion).value && answer_of(reference).value;
  return both ? Agreement::kDifferent : Agreement::kUnknown;
}

std::string_view answer_text(std::string_view text) {
  const size_t mark = text.rfind(kMark);
  const bool marked = mark != std::string_view::npos;
  if (marked) text.remove_prefix(mark + kMark.size());
  const std::optional<Box> box = last_box(text);
  if (!box) return line_of(text, /*first=*/marked);
  if (!box->ends) return {};

  // A box may hold several lines, as a matrix has them.
  std::string_view inside = box->inside;
  const std::string_view last = line_of(inside, false);
  const std::string_view first = line_of(inside, true);
  if (first.empty()) return {};
  return {first.data(), static_cast<size_t>(last.data() + last.size() - first.data())};
}

}  // namespace retort::data
