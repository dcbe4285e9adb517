#include "tests/house/rooms.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include "base/error.h"
#include "tests/house/includes.h"

namespace retort::house {
namespace fs = std::filesystem;
namespace {

const std::string kDocument = "docs/architecture.md";
const std::string kFence = "```rooms";
const std::string kNothing = "none";
constexpr size_t kTableColumns = 118;

struct Row {
  size_t line;  // counted from 1
  std::set<std::string> rooms;
};

// The lines "room -> room, room" of the ```rooms block; a line that begins with a space goes on.
std::map<std::string, Row> read_rows(const std::vector<std::string>& lines) {
  static const std::regex row(R"(^([\w/]+) +->(.*)$)"), word(R"([\w/]+)");
  std::map<std::string, Row> rows;
  std::string name;
  const auto begin = std::find(lines.begin(), lines.end(), kFence);
  for (auto line = begin; line != lines.end() && (line == begin || *line != "```"); ++line) {
    if (line == begin || line->empty()) continue;
    std::smatch match;
    std::string edges = *line;
    if (!line->starts_with(' ')) {
      if (!std::regex_match(*line, match, row))
        throw Error(ErrorCode::kInvalidArgument, "no line of a room").with("line", *line);
      name = match[1];
      edges = match[2];
      rows[name].line = line - lines.begin() + 1;
    }
    for (auto it = std::sregex_iterator(edges.begin(), edges.end(), word);
         it != std::sregex_iterator(); ++it)
      if (it->str() != kNothing) rows[name].rooms.insert(it->str());
  }
  return rows;
}

std::string row_text(const std::string& room, const std::set<std::string>& used) {
  std::string text, line = room + " ->";
  for (auto it = used.begin(); it != used.end(); ++it) {
    const std::string entry = " " + *it + (std::next(it) == used.end() ? "" : ",");
    if (line.size() + entry.size() > kTableColumns) {
      text += line + "\n";
      line = "   ";
    }
    line += entry;
  }
  return text + line + (used.empty() ? " " + kNothing : "") + "\n";
}

}  // namespace

std::string room_of(const fs::path& relative) {
  fs::path folder = relative.parent_path();
  while (folder.filename() == "detail")
    folder = folder.parent_path();
  return folder.string();
}

Rooms::Rooms(const std::vector<Source>& sources, const LayerTable& modules) : modules_(modules) {
  std::map<std::string, std::set<std::string>> rooms_of;
  std::set<std::string> files;
  for (const auto& source : sources) {
    if (!is_cxx(source.path) || !modules.count(module_of(source.path))) continue;
    rooms_of[module_of(source.path)].insert(room_of(source.path));
    files.insert(source.path.string());
  }
  for (const auto& entry : rooms_of)
    if (entry.second.size() > 1)
      for (const auto& room : entry.second)
        table_[room];

  for (const auto& source : sources) {
    const std::string from = room_of(source.path);
    if (!files.count(source.path.string())) continue;
    for (const auto& include : includes_of(source)) {
      const std::string to = room_of(include.path);
      if (!include.is_quoted || from == to || !files.count(include.path)) continue;
      if (module_of(include.path) != module_of(source.path)) continue;
      uses_.push_back({from, to, source.path, include.line, include.path});
      table_[from].insert(to);
    }
  }
}

std::string Rooms::weakest_link(const std::vector<std::string>& circle) const {
  const RoomUse* first_of_fewest = nullptr;
  size_t fewest = 0;
  for (size_t i = 0; i < circle.size(); ++i) {
    const auto is_edge = [&](const RoomUse& use) {
      return use.from == circle[i] && use.to == circle[(i + 1) % circle.size()];
    };
    const size_t count = std::count_if(uses_.begin(), uses_.end(), is_edge);
    if (first_of_fewest && count >= fewest) continue;
    fewest = count;
    first_of_fewest = &*std::find_if(uses_.begin(), uses_.end(), is_edge);
  }
  const std::string others =
      fewest > 1 ? ", and " + std::to_string(fewest - 1) + " more such includes" : "";
  return first_of_fewest->path.string() + ":" + std::to_string(first_of_fewest->line) +
         " includes \"" + first_of_fewest->included + "\"" + others;
}

std::vector<std::string> Rooms::circles() const {
  std::vector<std::string> found;
  for (const auto& circle : find_circles(table_))
    found.push_back(circle_text(circle) + " (" + weakest_link(circle) + ")");
  return found;
}

std::string Rooms::text() const {
  std::string all;
  for (const auto& circle : circles())
    all += "\n" + circle;
  if (!all.empty())
    throw Error(ErrorCode::kInvalidArgument, "rooms of a module include each other:" + all);

  const std::vector<std::string> order = users_first(table_);
  for (const auto& module : users_first(modules_)) {
    std::string paragraph;
    for (const auto& room : order)
      if (module_of(fs::path(room) / "file") == module)
        paragraph += row_text(room, table_.at(room));
    if (!paragraph.empty()) all += (all.empty() ? "" : "\n") + paragraph;
  }
  return all;
}

void Rooms::check(const std::string& markdown, const ReportAt& report) const {
  for (const auto& circle : circles())
    report(kDocument, 1, "rooms include each other: " + circle);

  // What the includes do and the table does not say.
  const auto rows = read_rows(split_lines(markdown));
  for (const auto& entry : table_)
    if (!rows.count(entry.first))
      report(kDocument, 1, "the room " + entry.first + " has no line in the block of rooms");
  for (const auto& use : uses_)
    if (const auto row = rows.find(use.from); row != rows.end() && !row->second.rooms.count(use.to))
      report(use.path, use.line,
             use.from + " may not include " + use.to + " (rooms in " + kDocument + "): \"" +
                 use.included + "\"");

  // What the table says and the includes do not do.
  LayerTable listed;
  for (const auto& [room, row] : rows) {
    listed[room] = row.rooms;
    const auto made = table_.find(room);
    if (made == table_.end()) {
      report(kDocument, row.line, room + " is no room of a module that has several");
      continue;
    }
    for (const auto& other : row.rooms)
      if (!made->second.count(other))
        report(kDocument, row.line, room + " -> " + other + " is listed, and nothing includes it");
  }
  for (const auto& circle : find_circles(listed))
    report(kDocument, rows.at(circle.front()).line, "a circle of rooms: " + circle_text(circle));
}

std::string with_room_block(std::string_view markdown, const std::string& text) {
  const size_t fence = markdown.find("\n" + kFence + "\n");
  const size_t begin = fence + kFence.size() + 2;
  const size_t end = fence == std::string_view::npos ? fence : markdown.find("```\n", begin);
  if (end == std::string_view::npos)
    throw Error(ErrorCode::kInvalidArgument, "no block " + kFence + " in this document");
  return std::string(markdown.substr(0, begin)) + text + std::string(markdown.substr(end));
}

}  // namespace retort::house
