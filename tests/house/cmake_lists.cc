#include "tests/house/cmake_lists.h"

#include <cctype>
#include <sstream>

namespace retort::house {
namespace fs = std::filesystem;
namespace {

bool ends_entry(char c) {
  return std::isspace(static_cast<unsigned char>(c)) || c == ')' || c == '(' || c == '"';
}

// Whether `name` stands in the text as a whole entry.
bool has_entry(const std::string& text, const std::string& name) {
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || ends_entry(text[at - 1])) && (end == text.size() || ends_entry(text[end])))
      return true;
  }
  return false;
}

}  // namespace

CMakeLists::CMakeLists(const std::vector<Source>& sources) {
  for (const auto& source : sources) {
    if (source.path.filename() != "CMakeLists.txt") continue;
    std::string& text = text_of_[source.path.parent_path()];
    for (const auto& line : source.lines)
      text += line.substr(0, line.find('#')) + "\n";
    read_headers(source.path.parent_path(), text);
  }
}

void CMakeLists::read_headers(const fs::path& folder, const std::string& text) {
  static const std::set<std::string> keywords{"SOURCES", "USES", "PRIVATE", "LABEL"};
  std::string spaced;
  for (const char c : text)
    spaced += c == '(' || c == ')' ? std::string(" ") + c + " " : std::string(1, c);
  std::istringstream words(spaced);
  bool is_header = false, is_module = false;
  for (std::string word; words >> word;) {
    if (word == "retort_module")
      is_module = true;
    else if (word == ")")
      is_module = is_header = false;
    else if (word == "HEADERS" || keywords.count(word))
      is_header = is_module && word == "HEADERS";
    else if (is_header)
      public_.insert((folder / word).lexically_normal().string());
  }
}

bool CMakeLists::name(const fs::path& path) const {
  for (fs::path folder = path.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    const auto list = text_of_.find(folder);
    if (list != text_of_.end() && has_entry(list->second, path.lexically_relative(folder).string()))
      return true;
  }
  return false;
}

}  // namespace retort::house
