#include "tests/launch/keys/test_source.h"

#include <algorithm>
#include <regex>
#include <vector>

#include "base/file.h"
#include "tests/house/cmake_lists.h"
#include "tests/house/function_bodies.h"
#include "tests/house/sources.h"

namespace retort::test {
namespace fs = std::filesystem;
namespace {

// A function's lines, its head among them as far as the line of the brace has it.
struct Part {
  size_t first, last;
  std::string head, text;
};

bool is_test_head(const std::string& head) {
  static const std::regex test(R"((^|.*\s)TEST(_F|_P)?\s*\(.*)");
  return std::regex_match(head, test);
}

bool is_switched_off(const Part& part) {
  static const std::regex skipped(R"([^{]*\{\s*GTEST_SKIP\b[\s\S]*)");
  return part.head.find("DISABLED_") != std::string::npos || std::regex_match(part.text, skipped);
}

std::string without_comment_lines(const house::Source& source, const std::string& comment) {
  std::string text;
  for (const auto& line : source.lines) {
    const size_t begin = line.find_first_not_of(' ');
    const bool is_comment =
        begin != std::string::npos && line.compare(begin, comment.size(), comment) == 0;
    text += is_comment ? "\n" : line + "\n";
  }
  return text;
}

std::vector<Part> parts_of(const std::string& code) {
  const std::vector<std::string> lines = house::split_lines(code);
  std::vector<Part> parts;
  for (const auto& body : house::find_function_bodies(lines)) {
    Part part{.first = body.first, .last = body.last, .head = body.head, .text = ""};
    for (size_t i = body.first; i <= body.last; ++i)
      part.text += lines[i] + "\n";
    parts.push_back(std::move(part));
  }
  return parts;
}

// The name that a function's head declares: what stands before its first parenthesis.
std::string name_of_head(const std::string& head) {
  const std::string before = head.substr(0, head.find('('));
  const size_t end = before.find_last_not_of(' ');
  if (end == std::string::npos) return "";
  const size_t begin = before.find_last_of(" :&*", end);
  return before.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

size_t count_words(const std::string& code, const std::string& word) {
  const std::regex whole("\\b" + word + "\\b");
  return std::distance(std::sregex_iterator(code.begin(), code.end(), whole),
                       std::sregex_iterator());
}

bool is_listed(const fs::path& root, const fs::path& file) {
  std::vector<house::Source> lists;
  for (fs::path folder = file.parent_path(); !folder.empty(); folder = folder.parent_path())
    if (const fs::path list = folder / "CMakeLists.txt"; fs::exists(root / list))
      lists.push_back({list, house::split_lines(read_file(root / list))});
  return house::CMakeLists(lists).name(file);
}

}  // namespace

std::string why_not_tested(const fs::path& root, const std::string& file, const std::string& text) {
  if (!fs::is_regular_file(root / file)) return file + " does not exist";
  if (file.ends_with(".cc") && !is_listed(root, file)) return file + " is in no CMakeLists.txt";

  const house::Source source{file, house::split_lines(read_file(root / file))};
  const std::string code = without_comment_lines(source, house::is_cxx(file) ? "//" : "#");
  if (code.find(text) == std::string::npos) return file + " does not hold '" + text + "' any more";
  const std::vector<Part> parts = parts_of(code);
  if (std::none_of(parts.begin(), parts.end(), [](auto& part) { return is_test_head(part.head); }))
    return "";

  // The rest of the file, without what does not run, is where helpers are named.
  std::vector<std::string> lines = house::split_lines(code);
  bool is_off = false;
  std::vector<std::string> holders;
  for (const Part& part : parts) {
    const bool off = is_test_head(part.head) && is_switched_off(part);
    if (off) std::fill(lines.begin() + part.first, lines.begin() + part.last + 1, "");
    if (part.text.find(text) == std::string::npos) continue;
    is_off |= off;
    if (is_test_head(part.head) && !off) return "";
    if (!off) holders.push_back(name_of_head(part.head));
  }

  std::string live;
  for (const auto& line : lines)
    live += line + "\n";
  for (const auto& holder : holders)
    if (count_words(live, holder) > 1) return "";
  if (holders.empty() && live.find(text) != std::string::npos) return "";
  return file + " holds '" + text + "' " +
         (is_off ? "only in a test that is switched off" : "in a function that nobody calls");
}

}  // namespace retort::test
