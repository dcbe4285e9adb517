#include "tests/house/packages.h"

#include <algorithm>
#include <regex>
#include <set>

#include "base/error.h"
#include "tests/house/includes.h"
#include "tests/house/layers.h"

namespace retort::house {
namespace {

struct PackageRow {
  size_t line;  // of the document, counted from 1
  std::vector<std::string> packages, folders;
};

std::vector<std::string> split_names(const std::string& text) {
  static const std::regex name(R"([\w./-]+)");
  std::vector<std::string> names;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), name); it != std::sregex_iterator();
       ++it)
    names.push_back(it->str());
  return names;
}

std::vector<PackageRow> read_package_rows(const std::string& markdown) {
  const std::vector<std::string> lines = split_lines(markdown);
  std::vector<PackageRow> rows;
  const auto fence = std::find(lines.begin(), lines.end(), "```packages");
  if (fence == lines.end()) return rows;
  for (auto line = fence + 1; line != lines.end() && *line != "```"; ++line) {
    const size_t arrow = line->find(" -> ");
    if (arrow == std::string::npos)
      throw Error(ErrorCode::kInvalidArgument, "no line of a package").with("line", *line);
    rows.push_back({static_cast<size_t>(line - lines.begin()) + 1,
                    split_names(line->substr(0, arrow)), split_names(line->substr(arrow + 4))});
  }
  return rows;
}

bool is_below(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

// The row of the longest package that the include is of; null if there is none.
const PackageRow* row_of(const std::vector<PackageRow>& rows, const std::string& included) {
  const PackageRow* found = nullptr;
  size_t longest = 0;
  for (const auto& row : rows)
    for (const auto& package : row.packages)
      if (is_below(included, package) && package.size() > longest) {
        longest = package.size();
        found = &row;
      }
  return found;
}

}  // namespace

void check_packages(const std::string& markdown, const std::vector<Source>& sources,
                    const ReportAt& report) {
  const std::vector<PackageRow> rows = read_package_rows(markdown);
  std::set<std::pair<size_t, std::string>> used;
  for (const auto& source : sources) {
    const std::string module = module_of(source.path);
    if (!is_cxx(source.path) || module == "tests" || module == "bench") continue;
    for (const auto& include : includes_of(source)) {
      const PackageRow* row = include.is_quoted ? nullptr : row_of(rows, include.path);
      if (!row) continue;
      const auto folder = std::find_if(
          row->folders.begin(), row->folders.end(),
          [&](const std::string& name) { return is_below(source.path.string(), name); });
      if (folder == row->folders.end())
        report(source.path, include.line,
               "<" + include.path + "> does not belong here (packages in docs/architecture.md)");
      else
        used.insert({row->line, *folder});
    }
  }

  for (const auto& row : rows)
    for (const auto& folder : row.folders)
      if (!used.count({row.line, folder}))
        report("docs/architecture.md", row.line,
               "nothing in " + folder + " includes " + row.packages.front());
}

}  // namespace retort::house
