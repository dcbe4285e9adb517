#include "recipes/data/detail/json_rows.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_kind.h"

namespace retort::data::detail {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kBlank = " \t\r\n";
constexpr size_t kWrittenAtOnce = size_t{1} << 20;

[[noreturn]] void refuse_text(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, path.string() + ": " + what);
}

std::string_view without_mark(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  return text;
}

// Returns the text without what is blank in front.
std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlank)));
  return text;
}

class ArrayLines {
 public:
  ArrayLines(const fs::path& path, std::string_view text,
             const std::function<void(std::string_view)>& write)
      : path_(path), text_(text), write_(write) {}

  void run() {
    skip_blank();
    ++at_;  // the bracket, by is_json_array()
    skip_blank();
    if (next() != ']') {
      for (;;) {
        object();
        skip_blank();
        if (next() == ']') break;
        if (next() != ',') refuse("expected a comma or ] behind item " + std::to_string(items_));
        ++at_;
        skip_blank();
      }
    }

    ++at_;
    skip_blank();
    if (at_ < text_.size()) refuse("more text stands behind the end of the array");
    write_(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument,
                path_.string() + ":" + std::to_string(line_) + ": " + what);
  }

  // The character that is read next; there must be one.
  char next() const {
    if (at_ == text_.size())
      refuse("the JSON array ends too early, behind " + std::to_string(items_) +
             " items (cut file?)");
    return text_[at_];
  }

  void skip_blank() {
    for (; at_ < text_.size() && kBlank.find(text_[at_]) != std::string_view::npos; ++at_)
      line_ += text_[at_] == '\n' ? 1 : 0;
  }

  void put(char c) {
    out_ += c;
    if (out_.size() < kWrittenAtOnce) return;
    write_(out_);
    out_.clear();
  }

  void object() {
    if (next() != '{')
      refuse("item " + std::to_string(items_ + 1) +
             " of the JSON array is no object; expected an array of objects, each of them a row");
    // Blank lines keep each row on the line of the original, so that messages name the right one.
    for (; made_line_ < line_; ++made_line_)
      put('\n');
    int64_t depth = 0;
    do {
      const char c = next();
      if (c == '"') {
        string();
        continue;
      }
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      if (c == '\n') ++line_;
      put(c == '\n' || c == '\r' ? ' ' : c);
      ++at_;
    } while (depth > 0);
    put('\n');
    ++made_line_;
    ++items_;
  }

  // Reads from one quote to the other. A line break inside is no JSON, and would make two rows of
  // one.
  void string() {
    bool escaped = false;
    for (bool first = true;; first = false) {
      const char c = next();
      if (c == '\n') refuse("a text in quotes goes on in the next line; JSON writes \\n there");
      put(c);
      ++at_;
      if (!first && !escaped && c == '"') return;
      escaped = !escaped && c == '\\';
    }
  }

  const fs::path& path_;
  const std::string_view text_;
  const std::function<void(std::string_view)>& write_;
  size_t at_ = 0;
  int64_t line_ = 1;       // of what is read next
  int64_t made_line_ = 1;  // of what is written next
  int64_t items_ = 0;
  std::string out_;
};

std::string first_line(std::string_view text) {
  std::string_view line = text.substr(0, text.find('\n'));
  if (line.ends_with('\r')) line.remove_suffix(1);
  constexpr size_t kShown = 60;
  std::string shown(line.substr(0, kShown));
  if (line.size() > kShown) shown += "...";
  return shown;
}

// True for an object that begins with a brace alone on its line, as json.dump with an indent writes
// it.
bool is_object_over_lines(std::string_view text) {
  if (!text.starts_with('{')) return false;
  const size_t end = text.find('\n');
  return end != std::string_view::npos && trimmed(text.substr(1, end - 1)).empty() &&
         !trimmed(text.substr(end)).empty();
}

// Returns the name of the first key of `text` whose value is a list, or "KEY" if none is found
// soon.
std::string first_list_key(std::string_view text) {
  text = text.substr(0, 4096);
  const size_t bracket = text.find('[');
  if (bracket == std::string_view::npos) return "KEY";
  const size_t close = text.rfind('"', bracket);
  if (close == std::string_view::npos || close == 0) return "KEY";
  const size_t open = text.rfind('"', close - 1);
  const bool key = open != std::string_view::npos &&
                   text.substr(close + 1, bracket - close - 1).find_first_not_of(" \t\r\n:") ==
                       std::string_view::npos;
  return key ? std::string(text.substr(open + 1, close - open - 1)) : "KEY";
}

// True for two lines of text without a brace, with as many separators in the one as in the other.
bool has_separated_values(std::string_view text, char separator) {
  int64_t found = 0;
  for (int line = 0; line < 2; ++line) {
    text = trimmed(text);
    if (text.empty() || text.starts_with('{') || text.starts_with('[')) return false;
    const std::string_view row = text.substr(0, text.find('\n'));
    const int64_t count = std::count(row.begin(), row.end(), separator);
    if (count == 0 || (line > 0 && count != found)) return false;
    found = count;
    text.remove_prefix(row.size());
  }
  return true;
}

void refuse_separated_values(const fs::path& path, std::string_view text) {
  const std::string ending = path.extension().string();
  if (text.empty() || text.starts_with('{')) return;
  const bool tabs = ending == ".tsv" || has_separated_values(text, '\t');
  if (!tabs && ending != ".csv" && !has_separated_values(text, ',')) return;
  const std::string target = path.stem().string() + ".jsonl";
  refuse_text(path, std::string("is ") + (tabs ? "TSV" : "CSV") + " (it begins with '" +
                        first_line(text) +
                        "'); expected a JSON object on each line. Turn it into them: "
                        "python -c \"import pandas; pandas.read_csv('" +
                        path.filename().string() + "'" + (tabs ? ", sep='\\t'" : "") +
                        ").to_json('" + target + "', orient='records', lines=True)\"");
}

}  // namespace

bool is_json_array(std::string_view text) { return trimmed(without_mark(text)).starts_with('['); }

void array_to_lines(const fs::path& path, std::string_view text,
                    const std::function<void(std::string_view)>& write) {
  ArrayLines(path, without_mark(text), write).run();
}

void check_json_lines(const fs::path& path, std::string_view text) {
  const FileKind kind = file_kind(text);
  if (kind != FileKind::kUnknown)
    refuse_text(path, description(kind) +
                          "; expected JSONL in UTF-8, a JSON array, Parquet or Arrow, or JSONL "
                          "compressed with gzip or Zstandard");
  const std::string_view begin = trimmed(without_mark(text));
  if (is_object_over_lines(begin))
    refuse_text(path,
                "is JSON with an object over many lines; expected an object on each line, or "
                "one array of objects. `jq -c .` writes each object on a line, `jq -c '." +
                    first_list_key(begin) + "[]'` the items of its list");
  refuse_separated_values(path, begin);
}

}  // namespace retort::data::detail
