// Reads JSON that arrives in pieces: large answers of servers, without holding them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace retort::engines {

// Hears what a text says, in its order. Views are valid during the call only. What a function
// throws ends the reading and passes to the caller of add().
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual void begin_object() = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void key(std::string_view name) = 0;
  // The first JsonReader::kKeptBytes of it, decoded; so is a key.
  virtual void string(std::string_view text) = 0;
  // All of a string that is no key, decoded, as it comes; string() follows the last piece. For
  // strings that may be longer than what string() has.
  virtual void string_piece(std::string_view) {}
  virtual void number(double value) = 0;  // finite
  virtual void boolean(bool value) = 0;
  virtual void null() = 0;
};

// Use: add() for each piece, however it is cut, then end().
// Errors: kCorrupt, with the byte where it is, for what is no JSON (RFC 8259), numbers that a
//   double does not hold (NaN and Infinity are no JSON), and more than kMaxJsonNesting levels.
//   After an error the object is of no more use.
// Memory: one token, at most kKeptBytes; nothing grows with the text.
// Threads: one at a time.
class JsonReader {
 public:
  static constexpr size_t kKeptBytes = 4096;

  explicit JsonReader(JsonHandler& handler) : handler_(handler) {}
  JsonReader(const JsonReader&) = delete;
  JsonReader& operator=(const JsonReader&) = delete;

  void add(std::string_view piece);
  // The text was complete; else kCorrupt.
  void end();

 private:
  // What may come next, or which token is being read.
  enum class State {
    kValue,       // any value
    kFirstValue,  // any value, or the end of an empty array
    kFirstKey,    // a key, or the end of an empty object
    kKey,         // a key, after a comma
    kColon,       // after a key
    kAfterValue,  // a comma, or the end of what the value stands in
    kString,      // within a string or key
    kEscape,      // after a backslash
    kUnicode,     // within the four digits of \uXXXX
    kNumber,      // within a number
    kWord,        // within true, false, null
    kDone,        // after the outermost value
  };

  size_t take(std::string_view piece, size_t at);
  size_t take_string(std::string_view piece, size_t at);
  size_t take_number(std::string_view piece, size_t at);
  void take_structure(char c);
  void begin_value(char c);
  void escape(char c);
  void unicode_digit(char c);
  void word_letter(char c);
  void open(bool object);
  void close(bool object);
  void value_ended();
  void string_ended();
  void number_ended();
  void keep(std::string_view bytes);
  void keep_code_point(uint32_t code);
  void keep_lone_surrogate();
  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void refuse_character(char c, const std::string& expected) const;

  JsonHandler& handler_;
  State state_ = State::kValue;
  std::vector<bool> levels_;  // true: an object
  bool is_key_ = false;
  std::string token_;
  std::string_view word_;  // the rest of true, false or null that must follow
  char first_letter_ = 0;  // of that word
  uint32_t code_ = 0;      // of \uXXXX
  int num_digits_ = 0;
  uint32_t high_surrogate_ = 0;  // the first half of a pair; 0: none
  uint64_t offset_ = 0;          // bytes before the piece
  size_t at_ = 0;                // within the piece
};

}  // namespace retort::engines
