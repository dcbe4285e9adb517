#include "tests/house/layers.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <regex>

#include "base/error.h"
#include "tests/house/sources.h"

namespace retort::house {
namespace fs = std::filesystem;
namespace {

using Path = std::vector<std::string>;

// The first circle that a walk along the edges comes to.
Path first_circle(const LayerTable& table) {
  std::set<std::string> done;
  Path open, circle;
  std::function<bool(const std::string&)> visit = [&](const std::string& name) {
    if (done.count(name)) return false;
    const auto again = std::find(open.begin(), open.end(), name);
    if (again != open.end()) {
      circle.assign(again, open.end());
      return true;
    }

    open.push_back(name);
    const auto entry = table.find(name);
    if (entry != table.end() && std::any_of(entry->second.begin(), entry->second.end(), visit))
      return true;
    open.pop_back();
    done.insert(name);
    return false;
  };
  for (const auto& entry : table)
    if (visit(entry.first)) break;
  return circle;
}

// The edges of the longest way down from each name.
std::map<std::string, size_t> heights(const LayerTable& table) {
  std::map<std::string, size_t> found;
  std::function<size_t(const std::string&)> height = [&](const std::string& name) {
    if (const auto known = found.find(name); known != found.end()) return known->second;
    size_t most = 0;
    if (const auto entry = table.find(name); entry != table.end())
      for (const auto& used : entry->second)
        most = std::max(most, height(used) + 1);
    return found[name] = most;
  };
  for (const auto& entry : table)
    height(entry.first);
  return found;
}

}  // namespace

LayerTable read_layer_table(std::string_view markdown) {
  static const std::regex row(R"(^([a-z]+) +->((?: +[a-z]+,?)+)(?:  .*)?$)"), word("[a-z]+");
  LayerTable table;
  std::smatch match;
  for (const auto& line : split_lines(markdown)) {
    if (line.starts_with("```") && !table.empty()) break;
    if (!std::regex_match(line, match, row)) continue;
    // The remark begins after two spaces that do not follow a comma.
    const std::string names =
        match[2].str().substr(1 + match[2].str().substr(1).find_first_not_of(' '));
    const std::string edges = names.substr(0, names.find("  "));
    auto& allowed = table[match[1]];
    for (auto it = std::sregex_iterator(edges.begin(), edges.end(), word);
         it != std::sregex_iterator(); ++it)
      if (it->str() != "std") allowed.insert(it->str());
  }

  if (table.empty())
    throw Error(ErrorCode::kInvalidArgument, "no table of modules in this document");
  for (const auto& [name, allowed] : table)
    for (const auto& other : allowed)
      if (!table.count(other))
        throw Error(ErrorCode::kInvalidArgument, "module without a line of its own")
            .with("module", other)
            .with("used_by", name);
  if (!find_circles(table).empty())
    throw Error(ErrorCode::kInvalidArgument, "the table of modules has a cycle");
  return table;
}

std::vector<Path> find_circles(LayerTable table) {
  std::vector<Path> found;
  for (const auto& [name, used] : table)
    for (const auto& other : used)
      if (const auto back = table.find(other);
          name < other && back != table.end() && back->second.count(name))
        found.push_back({name, other});
  for (const auto& pair : found) {
    table[pair[0]].erase(pair[1]);
    table[pair[1]].erase(pair[0]);
  }

  // Each circle loses one edge, so that the next one shows.
  for (Path circle = first_circle(table); !circle.empty(); circle = first_circle(table)) {
    table[circle.back()].erase(circle.front());
    found.push_back(std::move(circle));
  }
  return found;
}

std::string circle_text(const Path& circle) {
  std::string text;
  for (const auto& name : circle)
    text += name + " -> ";
  return text + circle.front();
}

std::vector<std::string> users_first(const LayerTable& table) {
  const auto height = heights(table);
  std::vector<std::string> names;
  for (const auto& entry : table)
    names.push_back(entry.first);
  std::stable_sort(names.begin(), names.end(),
                   [&](auto& a, auto& b) { return height.at(a) > height.at(b); });
  return names;
}

std::string module_of(const fs::path& relative) {
  auto part = relative.begin();
  if (part == relative.end() || std::next(part) == relative.end()) return "";
  const std::string first = part->string(), second = std::next(part)->string();
  if (first == "recipes" && (second == "data" || second == "losses" || second == "rewards") &&
      std::distance(relative.begin(), relative.end()) > 2)
    return second;
  return first;
}

}  // namespace retort::house
