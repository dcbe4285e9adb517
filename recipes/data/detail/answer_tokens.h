// The words and signs of a text, as far as numbers in it need to be told apart.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace retort::data::detail {

enum class TokenKind {
  // text: digits without separators, maybe a point, maybe "e" and an exponent; with a "?" where
  // nobody can tell which number it is ("1.2.3", "(1,234)")
  kNumber,
  kLetter,    // one letter, which may be a variable
  kWord,      // in lower case; a unit's exponent belongs to it ("cm^2")
  kUnit,      // %, a degree
  kSign,      // text: + - * / ^ = : , ( ) [ ] { } | _ ! and the like
  kSetOpen,   // \{
  kSetClose,  // \}
  kCommand,   // text: the name of TeX's (frac, sqrt, pi, infty, or one that is not known)
  kUnknown,   // what is no part of a number, and may change what one means
  kStop       // the end of a sentence or of a line, a quote, an arrow
};

struct Token {
  TokenKind kind;
  std::string text;
  bool spaced = false;  // there is a space before it

  bool is(TokenKind wanted, std::string_view what) const { return kind == wanted && text == what; }
  bool is_sign(char sign) const {
    return kind == TokenKind::kSign && text.size() == 1 && text[0] == sign;
  }
  // True if a formula may go on with it.
  bool is_math() const { return kind != TokenKind::kWord && kind != TokenKind::kStop; }
  bool operator==(const Token& other) const { return kind == other.kind && text == other.text; }
};

// Signs of other scripts are those of ASCII and TeX before (plain_text). Wrappers that change
// nothing ($, \left, \boxed, \displaystyle, thin spaces) leave no token. Takes time in proportion
// to the text.
std::vector<Token> answer_tokens(std::string_view text);

}  // namespace retort::data::detail
