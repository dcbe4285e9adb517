#include "recipes/data/detail/answer_tokens.h"

#include <algorithm>
#include <array>

#include "recipes/data/detail/plain_text.h"

namespace retort::data::detail {
namespace {

// The content of \text{...} is looked for this far, and within itself this deep, so that no text
// makes the lexer slow.
constexpr size_t kMaxTextBytes = 1000;
constexpr int kMaxTextDepth = 4;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

template <size_t kSize>
bool is_one_of(std::string_view word, const std::array<std::string_view, kSize>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

constexpr std::array<std::string_view, 25> kWrappers{
    "left", "right", "displaystyle", "textstyle", "big",    "Big",    "bigg",      "Bigg", "bigl",
    "bigr", "Bigl",  "Bigr",         "boxed",     "mathbf", "mathit", "bf",        "rm",   "quad",
    "euro", "qquad", "pounds",       "fbox",      "limits", "mathsf", "boldsymbol"};
constexpr std::array<std::string_view, 8> kTexts{"text",   "textbf", "textit", "textrm",
                                                 "mathrm", "mbox",   "emph",   "textnormal"};
// Names of functions change the number behind them.
constexpr std::array<std::string_view, 18> kFunctions{
    "log", "ln",  "exp", "sin",   "cos", "tan", "cot", "csc", "mod",
    "gcd", "lcm", "abs", "floor", "max", "arg", "det", "lim", "choose"};

class Lexer {
 public:
  Lexer(std::string_view text, int depth, std::vector<Token>& tokens)
      : text_(text), depth_(depth), tokens_(tokens) {}

  void read(bool spaced) {
    spaced_ = spaced;
    while (at_ < text_.size())
      read_token();
  }

 private:
  char look(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool takes(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  bool behind_number() const {
    return !tokens_.empty() && tokens_.back().kind == TokenKind::kNumber;
  }
  void add(TokenKind kind, std::string text) {
    if (kind == TokenKind::kWord || kind == TokenKind::kStop) num_open_ = 0;
    tokens_.push_back({kind, std::move(text), spaced_});
    spaced_ = false;
  }
  void add_sign(char sign) {
    if (sign == '(' || sign == '[') ++num_open_;
    if ((sign == ')' || sign == ']') && num_open_ > 0) --num_open_;
    add(TokenKind::kSign, std::string(1, sign));
  }

  void read_token() {
    const char c = look();
    const bool decimal = c == '.' && is_digit(look(1)) && !is_letter(before()) && before() != '.';
    if (is_digit(c) || decimal) return read_number();
    if (is_letter(c)) return read_word();
    if (c == '\\') return read_command();
    if (takes("->") || takes("=>")) return add(TokenKind::kStop, ";");
    // GSM8K marks calculations for a calculator: "<<3*4=12>>12".
    if (takes("<<") || takes(">>")) return add(TokenKind::kStop, ";");
    if (takes("**")) return add(TokenKind::kSign, "**");
    if (takes("==")) return add_sign('=');
    if (takes("<=") || takes(">=") || takes("!=")) return add(TokenKind::kUnknown, "<=");

    ++at_;
    switch (c) {
      case '$': return;
      case ' ':
      case '\t':
      case '~': spaced_ = true; return;
      case '%': return add(TokenKind::kUnit, "%");
      case ';': return add_sign(',');
      case '^': return read_hat();
      case ':': return add_colon();
      case '<':
      case '>':
      case '&':
      case kUnknownSign: return add(TokenKind::kUnknown, std::string(1, c));
      default: break;
    }
    if (std::string_view("+-*/=,()[]{}|_!").find(c) != std::string_view::npos) return add_sign(c);
    add(TokenKind::kStop, std::string(1, c));
    if (c == '\n') spaced_ = true;
  }

  char before() const { return at_ > 0 ? text_[at_ - 1] : '\0'; }

  // Returns the size of what parts groups of three digits: "," or a narrow space or what TeX writes
  // for them. 0: there is none.
  size_t separator_size() const {
    for (const std::string_view separator : {"{,}", ",\\!", "\\!", "\\,", "\\;", "\\ ", ","})
      if (text_.substr(at_).starts_with(separator)) return separator.size();
    return 0;
  }
  size_t num_digits(size_t ahead) const {
    size_t count = 0;
    while (is_digit(look(ahead + count)))
      ++count;
    return count;
  }

  // Reads digits, with separators where all that follow are of groups of three: "1,234,567". If
  // they are not, the first comma ends the number ("1,2", "1,234,56").
  std::string read_whole() {
    const size_t first = num_digits(0);
    std::string digits(text_.substr(at_, first));
    at_ += first;
    const size_t begin = at_;
    std::string grouped = digits;
    while (first >= 1 && first <= 3) {
      const size_t separator = separator_size();
      if (separator == 0 || num_digits(separator) == 0) break;
      if (num_digits(separator) != 3) {
        at_ = begin;
        return digits;
      }
      grouped += text_.substr(at_ + separator, 3);
      at_ += separator + 3;
    }
    // "(1,234)" may be a pair or a number, which nobody can tell: the "?" makes it unreadable as a
    // number.
    const bool in_brackets =
        at_ != begin && text_[begin] == ',' && text_[begin + 1] != '\\' && num_open_ > 0;
    return in_brackets ? grouped + '?' : grouped;
  }

  void read_number() {
    std::string number = read_whole();
    if (look() == '.' && is_digit(look(1))) {
      const size_t behind = num_digits(1);
      number += text_.substr(at_, 1 + behind);
      at_ += 1 + behind;
      // "1.2.3" is a version, and the end of "0.333..." is not known: neither is a number.
      const bool goes_on = look() == '.' && (is_digit(look(1)) || look(1) == '.');
      if (goes_on) number += '?';
    }

    const bool e = look() == 'e' || look() == 'E';
    const size_t sign = look(1) == '-' || look(1) == '+' ? 1 : 0;
    const size_t exponent = e ? num_digits(1 + sign) : 0;
    if (exponent > 0) {
      number += text_.substr(at_, 1 + sign + exponent);
      at_ += 1 + sign + exponent;
    }
    add(TokenKind::kNumber, std::move(number));
  }

  // Returns the size of "am", "a.m." or "PM", on which the hour depends. 0: there is none.
  size_t half_day_size() const {
    if (std::string_view("aApP").find(look()) == std::string_view::npos) return 0;
    const size_t point = look(1) == '.' ? 1 : 0;
    if (look(1 + point) != 'm' && look(1 + point) != 'M') return 0;
    if (is_letter(look(2 + point)) || is_digit(look(2 + point))) return 0;
    return 2 + point + (point == 1 && look(3) == '.' ? 1 : 0);
  }

  void read_word() {
    if (const size_t size = half_day_size(); size > 0 && behind_number()) {
      const bool morning = look() == 'a' || look() == 'A';
      at_ += size;
      return add(TokenKind::kWord, morning ? "am" : "pm");
    }

    // Digits that follow letters belong to a name ("CO2", "COVID-19"), as do hyphens in a word; not
    // so in scripts that are written without spaces.
    const size_t begin = at_;
    while (is_letter(look()))
      ++at_;
    const size_t letters = at_ - begin;
    const auto joins = [&](char c) { return letters > 1 && (c == '-' || c == '\''); };
    const bool is_ascii = static_cast<unsigned char>(before()) < 0x80;
    while (is_letter(look()) || (is_ascii && is_digit(look())) ||
           (joins(look()) && (is_letter(look(1)) || is_digit(look(1)))))
      ++at_;
    std::string word(text_.substr(begin, at_ - begin));

    const bool ascii = static_cast<unsigned char>(word[0]) < 0x80;
    if (word.size() == 1 && ascii && depth_ == 0 && !is_article(word[0]))
      return add(TokenKind::kLetter, std::move(word));
    std::transform(word.begin(), word.end(), word.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    add_word(std::move(word));
  }

  // "a 5" and "5 a day" are no products.
  bool is_article(char letter) const {
    if (letter != 'a' && letter != 'A' && letter != 'I') return false;
    return look() == ' ' && (is_letter(look(1)) || is_digit(look(1)));
  }

  void add_word(std::string word) {
    if (word == "minus" || word == "negative") return add_sign('-');
    if (word == "plus") return add_sign('+');
    if (word == "times") return add_sign('*');
    if (word == "pi" || word == "sqrt") return add(TokenKind::kCommand, std::move(word));
    const bool called = look() == '(' && (is_digit(look(1)) || look(1) == '-');
    if (called || is_one_of(word, kFunctions)) return add(TokenKind::kUnknown, std::move(word));
    skip_exponent();
    add(TokenKind::kWord, std::move(word));
  }

  // Skips the exponent of a unit: "cm^2", "\text{m}^{-1}".
  void skip_exponent() {
    const size_t begin = at_;
    if (!takes("^")) return;
    const bool braces = takes("{");
    takes("-");
    const size_t digits = num_digits(0);
    at_ += digits;
    if (digits == 0 || (braces && !takes("}"))) at_ = begin;
  }

  // A hat begins a power, or is TeX's degree.
  void read_hat() {
    for (const std::string_view degree : {"\\circ", "{\\circ}", " \\circ", "{ \\circ }"})
      if (takes(degree)) return add(TokenKind::kUnit, "degree");
    add_sign('^');
  }

  // A colon joins numbers in "12:30"; in "Step 2: 5" it ends a phrase.
  void add_colon() {
    const bool spaced = spaced_ && look() == ' ' && is_digit(look(1));
    const bool glued = !spaced_ && is_digit(look());
    if (behind_number() && (spaced || glued)) return add_sign(':');
    add(TokenKind::kStop, ":");
  }

  void read_command() {
    ++at_;
    if (!is_letter(look()) || static_cast<unsigned char>(look()) >= 0x80) return read_escape();
    const size_t begin = at_;
    while (is_letter(look()) && static_cast<unsigned char>(look()) < 0x80)
      ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);

    if (is_one_of(name, kTexts)) return read_text(name);
    if (name == "times" || name == "cdot" || name == "ast") return add_sign('*');
    if (name == "div") return add_sign('/');
    if (name == "approx" || name == "simeq" || name == "in") return add_sign('=');
    if (name == "dfrac" || name == "tfrac") return add(TokenKind::kCommand, "frac");
    if (name == "degree") return add(TokenKind::kUnit, "degree");
    if (name == "lbrace") return add(TokenKind::kSetOpen, "{");
    if (name == "rbrace") return add(TokenKind::kSetClose, "}");
    if (is_one_of(name, kWrappers)) {
      spaced_ = true;
      return;
    }
    add(TokenKind::kCommand, std::string(name));
  }

  void read_escape() {
    const char c = look();
    if (at_ < text_.size()) ++at_;
    switch (c) {
      case '{': return add(TokenKind::kSetOpen, "{");
      case '}': return add(TokenKind::kSetClose, "}");
      case '%': return add(TokenKind::kUnit, "%");
      case '$': return;
      case ',':
      case '!':
      case ';':
      case ':':
      case '>':
      case ' ':
      case '(':
      case ')':
      case '[':
      case ']': spaced_ = true; return;
      default: return add(TokenKind::kUnknown, std::string("\\") + c);
    }
  }

  // Reads \text{...}: its letters are words, and the braces around them are no token.
  void read_text(std::string_view name) {
    const std::string_view rest = text_.substr(at_, kMaxTextBytes);
    size_t end = 0;
    int depth = 0;
    for (; end < rest.size(); ++end) {
      if (rest[end] == '{') ++depth;
      if (rest[end] == '}') --depth;
      if (depth <= 0) break;
    }
    if (!rest.starts_with('{') || end >= rest.size() || depth_ >= kMaxTextDepth)
      return add(TokenKind::kUnknown, std::string(name));

    // An exponent behind the braces is that of the unit in them.
    Lexer(rest.substr(1, end - 1), depth_ + 1, tokens_).read(true);
    at_ += end + 1;
    if (!tokens_.empty() && tokens_.back().kind == TokenKind::kWord) skip_exponent();
    spaced_ = true;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_;
  bool spaced_ = false;
  int num_open_ = 0;  // brackets around what is read, of one formula
  std::vector<Token>& tokens_;
};

}  // namespace

std::vector<Token> answer_tokens(std::string_view text) {
  const std::string plain = plain_text(text);
  std::vector<Token> tokens;
  Lexer(plain, 0, tokens).read(false);
  return tokens;
}

}  // namespace retort::data::detail
