#include "tests/house/function_bodies.h"

#include <algorithm>
#include <cctype>
#include <regex>

namespace retort::house {
namespace {

constexpr size_t kMaxLinesWithoutBlank = 40;
constexpr size_t kMaxBodyLines = 60;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)); }

std::string trimmed(const std::string& text) {
  const auto begin = std::find_if_not(text.begin(), text.end(), is_space);
  const auto end = std::find_if_not(text.rbegin(), text.rend(), is_space).base();
  return begin < end ? std::string(begin, end) : "";
}

// Takes comments, preprocessor lines and the insides of literals out of code, line by line.
class CodeReader {
 public:
  std::string read(const std::string& line) {
    code_.clear();
    const std::string text = trimmed(line);
    if (until_.empty() && (in_directive_ || text.starts_with('#'))) {
      in_directive_ = text.ends_with('\\');
      return "";
    }
    for (size_t i = 0; i < line.size();)
      i = until_.empty() ? next(line, i) : skip(line, i);
    return code_;
  }

 private:
  // Inside a block comment or a raw string, which end with until_.
  size_t skip(const std::string& line, size_t at) {
    const size_t found = line.find(until_, at);
    if (found == std::string::npos) return line.size();
    const size_t end = found + until_.size();
    until_.clear();
    return end;
  }

  size_t next(const std::string& line, size_t at) {
    const std::string_view rest = std::string_view(line).substr(at);
    if (rest.starts_with("//")) return line.size();
    if (rest.starts_with("/*")) {
      until_ = "*/";
      return at + 2;
    }
    const size_t open = rest.starts_with("R\"") ? line.find('(', at) : std::string::npos;
    if (open != std::string::npos) {
      until_ = ")" + line.substr(at + 2, open - at - 2) + "\"";
      return open + 1;
    }
    // The apostrophe between digits is no literal.
    if (line[at] == '"' || (line[at] == '\'' && !(at > 0 && is_word(line[at - 1]))))
      return end_of_literal(line, at);
    code_ += line[at];
    return at + 1;
  }

  size_t end_of_literal(const std::string& line, size_t at) {
    size_t i = at + 1;
    while (i < line.size() && line[i] != line[at])
      i += line[i] == '\\' ? 2 : 1;
    code_ += "\"\"";
    return i + 1;
  }

  std::string code_, until_;
  bool in_directive_ = false;
};

// Whether what stands before a brace declares a function: after its last parenthesis comes nothing,
// a qualifier, a return type or the initialisers of members.
bool is_function_head(const std::string& head) {
  static const std::regex after(
      R"(\s*((const|noexcept|override|final|mutable|try)\b|&|->|:(?!:)|,)[^=]*|\s*)");
  const size_t close = head.rfind(')');
  return close != std::string::npos && std::regex_match(head.substr(close + 1), after);
}

// Whether the brace after this beginning of a statement opens an initialiser.
bool is_initialiser(const std::string& head) {
  if (head.ends_with("return") || head.ends_with('=')) return true;
  static const std::regex block(R"((else|do|try)\b.*|.*[()].*|.*\]|)");
  return !std::regex_match(head, block);
}

class BodyFinder {
 public:
  std::vector<FunctionBody> run(const std::vector<std::string>& lines) {
    CodeReader reader;
    for (line_ = 0; line_ < lines.size(); ++line_) {
      for (const char c : reader.read(lines[line_]))
        take(c);
      head_ += ' ';
    }
    return found_;
  }

 private:
  struct Block {
    size_t line;
    std::string head;
    bool is_table;
  };

  void take(char c) {
    // After a block the text goes on only if it is an expression: "member_{1}, other_(2)".
    static const std::string continues = ",{);.(]";
    if (after_block_ && !is_space(c)) {
      if (continues.find(c) == std::string::npos) head_.clear();
      after_block_ = false;
    }

    if (c == '{')
      open();
    else if (c == '}')
      close();
    else if (c == ';')
      head_.clear();
    else
      head_ += c;
  }

  void open() {
    const std::string head = trimmed(head_);
    // Tables count where they are statements of the function itself.
    const bool is_table = open_.size() == function_depth_ && is_initialiser(head);
    if (function_depth_ == 0 && is_function_head(head)) {
      function_depth_ = open_.size() + 1;
      function_head_ = head;
      table_lines_ = 0;
    }
    open_.push_back({line_, head_, is_table});
    head_.clear();
  }

  void close() {
    if (open_.empty()) return;
    const Block block = open_.back();
    open_.pop_back();
    if (function_depth_ > 0 && block.is_table) table_lines_ += line_ - block.line;
    if (open_.size() + 1 == function_depth_) {
      found_.push_back({block.line, line_, table_lines_, function_head_});
      function_depth_ = 0;
    }
    head_ = block.head + "{}";
    after_block_ = true;
  }

  std::vector<FunctionBody> found_;
  std::vector<Block> open_;
  std::string head_;           // since the last semicolon or brace
  std::string function_head_;  // of the function that is open
  bool after_block_ = false;   // nothing but space since a closing brace
  size_t function_depth_ = 0;  // of the blocks that are open inside a function; 0 outside
  size_t table_lines_ = 0, line_ = 0;
};

}  // namespace

std::vector<FunctionBody> find_function_bodies(const std::vector<std::string>& lines) {
  return BodyFinder().run(lines);
}

void check_paragraphs(const Source& source, const Report& report) {
  const auto is_blank = [](const std::string& line) { return trimmed(line).empty(); };
  for (const auto& body : find_function_bodies(source.lines)) {
    if (body.last - body.first <= kMaxLinesWithoutBlank + 1 + body.table_lines) continue;
    const auto begin = source.lines.begin() + body.first, end = source.lines.begin() + body.last;
    if (std::none_of(begin, end, is_blank))
      report(body.first + 1, "a body of " + std::to_string(body.last - body.first - 1) +
                                 " lines without a blank line; paragraphs have a heading each");
  }
}

void check_length(const Source& source, const Report& report) {
  if (source.path.extension() == ".cuh") return;
  for (const auto& body : find_function_bodies(source.lines)) {
    if (body.head.find("void fields(") != std::string::npos) continue;
    // A table in one line has none between its braces.
    const size_t lines = body.lines() - std::min(body.lines(), body.table_lines);
    if (lines > kMaxBodyLines)
      report(body.first + 1, "a body of " + std::to_string(lines) + " lines, of at most " +
                                 std::to_string(kMaxBodyLines) + "; a paragraph is a function");
  }
}

}  // namespace retort::house
