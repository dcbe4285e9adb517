// Literals of Python, as calls in pythonic form have them for arguments. Private to models/text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace retort::models::detail {

// Reads one literal after another out of a text. What is none, or has no JSON, gives none: bytes,
// complex numbers, f-strings, names but True, False, None and JSON's own three, expressions.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  bool done() const { return at_ == text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }
  bool take(std::string_view expected);
  void skip_space();
  // A letter and what may follow it in a name, of ASCII; empty if there is none.
  std::string_view name();

  // The literal's JSON, which stands `depth` deep in what is read. As json.dumps does it, tuples
  // and sets are lists, and keys texts.
  std::optional<std::string> value(int depth);

 private:
  std::optional<std::string> sequence(char end, int depth, std::string items = {});
  std::optional<std::string> parenthesised(int depth);
  std::optional<std::string> dictionary_or_set(int depth);
  std::optional<std::string> key();
  std::optional<std::string> signed_number();
  std::optional<std::string> number(bool negative);
  std::optional<std::string> word();
  bool begins_string() const;
  std::optional<std::string> strings();
  bool string(std::string& to);
  bool escape(std::string& to);
  bool numbered(size_t digits, std::string& to);

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace retort::models::detail
