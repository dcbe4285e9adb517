#include "tests/house/cited_names.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <string_view>
#include <unordered_map>

#include "tests/house/layers.h"

namespace retort::house {
namespace fs = std::filesystem;
namespace {

struct Citation {
  size_t line;  // counted from 1
  std::string text;
};

// What stands between backticks and matches `wanted` as a whole.
std::vector<Citation> citations(const Source& document, const std::regex& wanted) {
  static const std::regex quoted("`([^`]+)`");
  std::vector<Citation> found;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string& line = document.lines[i];
    for (auto it = std::sregex_iterator(line.begin(), line.end(), quoted);
         it != std::sregex_iterator(); ++it)
      if (std::regex_match((*it)[1].str(), wanted)) found.push_back({i + 1, (*it)[1]});
  }
  return found;
}

bool is_word_part(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The words of a text, which outlives them.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if(begin, text.end(), is_word_part);
    const auto end = std::find_if_not(begin, text.end(), is_word_part);
    if (begin != end) words.push_back(text.substr(begin - text.begin(), end - begin));
    begin = end;
  }
  return words;
}

}  // namespace

CitedNames::CitedNames(const std::vector<Source>& sources) : sources_(sources) {
  for (const auto& source : sources) {
    if (!is_cxx(source.path)) continue;
    paths_.insert(source.path.string());
    names_.insert(source.path.filename().string());
    for (fs::path folder = source.path.parent_path(); !folder.empty();
         folder = folder.parent_path())
      folders_.insert(folder.string());
  }
}

void CitedNames::check_paths(const Source& document, const Report& report) const {
  static const std::regex file(R"([\w/.-]+\.(h|cc|cu|cuh))"), folder(R"([a-z_]+(/[a-z_]+)+)");
  // Of other projects' files and of folders like `x/detail` nothing is known.
  const auto is_ours = [&](const std::string& text) {
    return folders_.count(text.substr(0, text.find('/'))) != 0;
  };
  for (const auto& [line, text] : citations(document, file)) {
    const bool is_path = text.find('/') != std::string::npos;
    const bool is_there = is_path ? !is_ours(text) || paths_.count(text) : names_.count(text);
    if (!is_there) report(line, "cites the file " + text + ", which does not exist");
  }
  for (const auto& [line, text] : citations(document, folder))
    if (is_ours(text) && !folders_.count(text))
      report(line, "cites the folder " + text + ", which has no source");
}

void CitedNames::check_identifiers(const Source& document, const Report& report) const {
  static const std::regex identifier(R"(\w+(::\w+)*(\(\))?)");
  const std::vector<Citation> cited = citations(document, identifier);
  // Word -> the files that have it.
  std::unordered_map<std::string_view, std::set<size_t>> files_of;
  for (const auto& citation : cited)
    for (const auto& word : words_of(citation.text))
      files_of[word];
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (!is_cxx(sources_[i].path) || module_of(sources_[i].path) == "tests") continue;
    for (const auto& line : sources_[i].lines)
      for (const auto& word : words_of(line))
        if (const auto files = files_of.find(word); files != files_of.end())
          files->second.insert(i);
  }

  for (const auto& [line, text] : cited) {
    const std::vector<std::string_view> words = words_of(text);
    const std::set<size_t>& files = files_of.at(words.front());
    const bool is_there = std::any_of(files.begin(), files.end(), [&](size_t file) {
      return std::all_of(words.begin(), words.end(),
                         [&](auto& word) { return files_of.at(word).count(file) != 0; });
    });
    if (!is_there) report(line, "names " + text + ", which no file has");
  }
}

}  // namespace retort::house
