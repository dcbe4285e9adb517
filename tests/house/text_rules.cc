#include "tests/house/text_rules.h"

#include <algorithm>
#include <array>
#include <regex>

namespace retort::house {
namespace fs = std::filesystem;
namespace {

constexpr size_t kCodeColumns = 100, kDocumentColumns = 120;

// Code points of UTF-8: every byte that does not continue one.
size_t columns(const std::string& line) {
  return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// Whether the line is worth the regular expressions, which are slow.
bool may_cite(const std::string& line) {
  static const std::array<std::string, 5> words{"docs/", "SYSTEMS", "INTERFACE", "STYLE",
                                                "ARCHITECTURE"};
  return std::any_of(words.begin(), words.end(),
                     [&](const auto& word) { return line.find(word) != std::string::npos; });
}

bool is_address(const std::string& line) {
  static const std::regex address(R"(^\s*(//|#|\*|-)?\s*<?https?://\S+\s*$)");
  return std::regex_match(line, address);
}

}  // namespace

void check_width(const Source& source, const Report& report) {
  const size_t limit = is_document(source.path) ? kDocumentColumns : kCodeColumns;
  const bool has_generated_tables = source.path == "docs/recipe.md";
  for (size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    if (line.size() <= limit || columns(line) <= limit || is_address(line)) continue;
    if (has_generated_tables && line.starts_with("|")) continue;
    report(i + 1, "more than " + std::to_string(limit) + " columns");
  }
}

void check_citations(const Source& source, const fs::path& root, const Report& report) {
  static const std::regex file(R"((^|[^\w/.-])(docs/[\w/.-]+\.md)\b)");
  static const std::regex section(
      R"(\b(SYSTEMS|INTERFACE|STYLE|ARCHITECTURE)(\.md)? ([A-Z]?\d|[A-Z]\b))");
  std::smatch match;
  for (size_t i = 0; i < source.lines.size(); ++i) {
    const std::string& line = source.lines[i];
    if (!may_cite(line)) continue;
    for (auto it = std::sregex_iterator(line.begin(), line.end(), file);
         it != std::sregex_iterator(); ++it)
      if (const std::string cited = (*it)[2]; !fs::exists(root / cited))
        report(i + 1, "cites " + cited + ", which does not exist");
    if (std::regex_search(line, match, section))
      report(i + 1, "cites \"" + match[0].str() + "\", a document that is not in the repository");
  }
}

}  // namespace retort::house
