#include "tests/house/header_rules.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "tests/house/includes.h"
#include "tests/house/rooms.h"

namespace retort::house {
namespace fs = std::filesystem;
namespace {

constexpr size_t kContractLines = 25;

// x.cc and x.cu beside x.h.
bool is_own_source(const fs::path& source, const fs::path& header) {
  return !is_header(source) &&
         fs::path(source).replace_extension() == fs::path(header).replace_extension();
}

}  // namespace

HeaderRules::HeaderRules(const std::vector<Source>& sources, const LayerTable& modules) {
  for (const auto& source : sources)
    if (is_header(source.path) && modules.count(module_of(source.path)))
      headers_[source.path.string()].num_lines = source.lines.size();

  for (const auto& source : sources) {
    if (!is_cxx(source.path)) continue;
    for (const auto& include : includes_of(source)) {
      const auto header = headers_.find(include.path);
      if (header == headers_.end() || is_own_source(source.path, include.path)) continue;
      if (module_of(source.path) == "tests")
        header->second.is_tested = true;
      else
        header->second.users.push_back(source.path.string());
    }
  }
}

bool HeaderRules::pays_rent(const std::string& path, const Header& header) const {
  if (header.num_lines >= kContractLines || header.is_tested || header.users.size() > 1)
    return true;
  return header.users.size() == 1 && room_of(header.users[0]) != room_of(path);
}

void HeaderRules::check_rent(const std::map<std::string, std::string>& exceptions,
                             const ReportAt& report) const {
  for (const auto& [path, header] : headers_) {
    const bool is_exception = exceptions.count(path);
    if (pays_rent(path, header)) {
      if (is_exception) report(path, 1, "an exception of the rule of rent that it does not need");
    } else if (!is_exception) {
      report(path, 1,
             "a header of " + std::to_string(header.num_lines) + " lines that only " +
                 (header.users.empty() ? "its own .cc" : header.users[0]) +
                 " includes, and no test; what it declares belongs there");
    }
  }
  for (const auto& entry : exceptions)
    if (!headers_.count(entry.first))
      report(entry.first, 1, "an exception of the rule of rent that does not exist");
}

void HeaderRules::check_public(const CMakeLists& lists, const ReportAt& report) const {
  std::set<std::string> needed;
  for (const auto& [path, header] : headers_) {
    const auto is_elsewhere = [&header_path = path](const std::string& user) {
      return module_of(user) != module_of(header_path) && module_of(user) != "bench";
    };
    if (std::any_of(header.users.begin(), header.users.end(), is_elsewhere)) needed.insert(path);
  }

  // What those include, and so on, until nothing is added.
  for (size_t before = 0; before != needed.size();) {
    before = needed.size();
    for (const auto& [path, header] : headers_)
      for (const auto& user : header.users)
        if (needed.count(user)) needed.insert(path);
  }

  for (const auto& entry : headers_)
    if (lists.is_public(entry.first) && !needed.count(entry.first))
      report(entry.first, 1, "no other module includes it: it does not belong into HEADERS");
}

}  // namespace retort::house
