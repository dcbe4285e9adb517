#include "tests/house/includes.h"

#include <regex>

namespace retort::house {

std::vector<Include> includes_of(const Source& source) {
  static const std::regex include(R"(^\s*#\s*include\s*(["<])([^">]+)[">].*)");
  std::vector<Include> found;
  std::smatch match;
  for (size_t i = 0; i < source.lines.size(); ++i) {
    // The regular expression is slow, and few lines are directives.
    const std::string& line = source.lines[i];
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos || line[first] != '#') continue;
    if (std::regex_match(line, match, include))
      found.push_back({i + 1, match[2], match[1] == "\""});
  }
  return found;
}

}  // namespace retort::house
