#include "tests/house/house_rules.h"

#include <algorithm>
#include <functional>
#include <regex>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "tests/house/function_bodies.h"
#include "tests/house/sources.h"
#include "tests/house/text_rules.h"

namespace retort::house {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxLines = 400;
constexpr size_t kMaxTestLines = 500;
const std::set<std::string> kSeesEverything{"tests", "bench"};
const std::string kEngineKind = "EngineKind::";  // names one kind
// Names that say nothing about what is inside; and names that hide a system header once the root is
// on the include path.
const std::regex kEmptyName("(.*_)?(utils?|commons?|helpers?|misc)");
const std::set<std::string> kShadowing{
    "rpc/netdb.h",     "parallel/types.h", "parallel/settings.h", "parallel/tags.h",
    "parallel/base.h", "parallel/queue.h", "parallel/iterator.h", "parallel/features.h"};

bool is_detail(const fs::path& path) {
  return std::any_of(path.begin(), path.end(), [](auto& part) { return part == "detail"; });
}

// A module that reaches itself through the table.
bool has_cycle(const LayerTable& table) {
  std::set<std::string> done, open;
  std::function<bool(const std::string&)> visit = [&](const std::string& name) {
    if (done.count(name)) return false;
    if (!open.insert(name).second) return true;
    for (const auto& next : table.at(name))
      if (visit(next)) return true;
    open.erase(name);
    done.insert(name);
    return false;
  };
  return std::any_of(table.begin(), table.end(),
                     [&](const auto& entry) { return visit(entry.first); });
}

class Checker {
 public:
  explicit Checker(const fs::path& root)
      : root_(root),
        table_(read_layer_table(read_file(root / "docs/architecture.md"))),
        sources_(read_sources(root)) {
    for (const auto& source : sources_)
      if (source.path.filename() == "CMakeLists.txt") {
        std::string text;
        for (const auto& line : source.lines)
          text += line.substr(0, line.find('#')) + "\n";
        lists_[source.path.parent_path()] = text;
      }
  }

  std::vector<std::string> run() {
    for (const auto& source : sources_)
      check(source);
    for (const auto& document : read_documents(root_))
      check_text(document);
    std::sort(found_.begin(), found_.end());
    return found_;
  }

 private:
  void report(const fs::path& path, size_t line, const std::string& what) {
    found_.push_back(path.string() + ":" + std::to_string(line) + ": " + what);
  }

  // Other modules may include only what HEADERS lists; the rest, and all of detail/, is private.
  bool is_private(const fs::path& path) const { return is_detail(path) || !is_listed(path); }

  void check_text(const Source& source) {
    const Report report_here = [&](size_t line, const std::string& what) {
      report(source.path, line, what);
    };
    check_width(source, report_here);
    check_citations(source, root_, report_here);
    if (is_cxx(source.path)) check_paragraphs(source, report_here);
  }

  void check(const Source& source) {
    check_text(source);
    const size_t limit = module_of(source.path) == "tests" ? kMaxTestLines : kMaxLines;
    if (source.lines.size() > limit)
      report(source.path, source.lines.size(),
             "more than " + std::to_string(limit) + " lines; split it by concept");
    if (std::regex_match(source.path.stem().string(), kEmptyName))
      report(source.path, 1, "the name says nothing; name it after the one concept it holds");
    if (kShadowing.count(source.path.string()))
      report(source.path, 1, "the name hides a system header");
    if (is_cxx(source.path)) check_cxx(source);
  }

  void check_cxx(const Source& source) {
    if (!is_header(source.path) && !is_listed(source.path))
      report(source.path, 1,
             "no CMakeLists.txt of its folder or above names it, so it is never compiled");
    if (is_header(source.path) && std::none_of(source.lines.begin(), source.lines.end(),
                                               [](auto& line) { return line == "#pragma once"; }))
      report(source.path, 1, "no #pragma once");

    check_engine_kinds(source);

    static const std::regex include(R"(^\s*#\s*include\s*(["<])([^">]+)[">].*)");
    std::smatch match;
    bool first = true;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      if (!std::regex_match(source.lines[i], match, include)) continue;
      if (std::exchange(first, false)) check_first_include(source, i + 1, match[2]);
      match[1] == "\"" ? check_own_include(source, i + 1, match[2])
                       : check_system_include(source, i + 1, match[2]);
    }
  }

  // Whoever decides by what an engine is called has to be found when there is another one.
  void check_engine_kinds(const Source& source) {
    const std::string module = module_of(source.path);
    if (module == "engines" || kSeesEverything.count(module)) return;
    for (size_t i = 0; i < source.lines.size(); ++i)
      if (source.lines[i].find(kEngineKind) != std::string::npos)
        report(source.path, i + 1,
               "decides by the kind of an engine; ask engines/traits.h what that "
               "kind can do");
  }

  // That proves the header to compile alone: cmake/RetortModule.cmake verifies only those without.
  void check_first_include(const Source& source, size_t line, const std::string& included) {
    if (source.path.extension() != ".cc") return;
    const std::string header = fs::path(source.path).replace_extension(".h").string();
    if (included != header && fs::exists(root_ / header))
      report(source.path, line, "the first include is not its own header, \"" + header + "\"");
  }

  // Whether the CMakeLists.txt of its folder or of one above names the file.
  bool is_listed(const fs::path& path) const {
    const auto is_end = [](char c) {
      return std::isspace(static_cast<unsigned char>(c)) || c == ')' || c == '(' || c == '"';
    };
    for (fs::path folder = path.parent_path(); !folder.empty(); folder = folder.parent_path()) {
      const auto list = lists_.find(folder);
      if (list == lists_.end()) continue;
      const std::string name = path.lexically_relative(folder).string();
      for (auto at = list->second.find(name); at != std::string::npos;
           at = list->second.find(name, at + 1)) {
        const size_t end = at + name.size();
        if ((at == 0 || is_end(list->second[at - 1])) &&
            (end == list->second.size() || is_end(list->second[end])))
          return true;
      }
    }
    return false;
  }

  void check_own_include(const Source& source, size_t line, const std::string& included) {
    if (!fs::exists(root_ / included)) {
      report(source.path, line,
             "\"" + included +
                 "\" does not exist from the root: quotes are for our files, <> for packages");
      return;
    }
    const std::string from = module_of(source.path), to = module_of(included);
    if (kSeesEverything.count(from)) return;
    if (from != to && !kSeesEverything.count(to) && is_private(included))
      report(source.path, line,
             "\"" + included + "\" is private to " + to + " (in detail/, or not in its HEADERS)");
    const auto allowed = table_.find(from);
    if (allowed == table_.end())
      report(source.path, line, "module " + from + " is not in the table of docs/architecture.md");
    else if (from != to && !allowed->second.count(to))
      report(source.path, line,
             from + " may not include " + to + " (table in docs/architecture.md): \"" + included +
                 "\"");
    else if (is_header(source.path) && !is_private(source.path) && is_private(included))
      report(source.path, line, "a public header may not include the private \"" + included + "\"");
  }

  void check_system_include(const Source& source, size_t line, const std::string& included) {
    const std::string module = module_of(source.path);
    if (kSeesEverything.count(module)) return;
    // cereal's own containers take the memory that a size asks for before they read.
    if (included.starts_with("cereal/")) {
      if (source.path != "rpc/archive.h")
        report(source.path, line, "<" + included + "> has no limits; include \"rpc/archive.h\"");
      return;
    }
    if (!is_header(source.path)) return;
    if (included == "torch/torch.h")
      return report(source.path, line, "<torch/torch.h> costs every includer 20 s; not in headers");
    if (is_detail(source.path)) return;
    static const std::regex third_party(
        "(tensorpipe/|yaml-cpp/|boost/beast).*|nccl.h|cuda_runtime.h");
    if (std::regex_match(included, third_party))
      return report(source.path, line,
                    "<" + included + "> belongs into a .cc or a header in detail/");
    if (is_private(source.path)) return;
    static const std::regex standard("[a-z_0-9]+|std(int|def|bool)\\.h|unistd\\.h|sys/[a-z]+\\.h");
    static const std::set<std::string> accepted{"ATen/core/Tensor.h", "c10/core/ScalarType.h",
                                                "boost/asio/awaitable.hpp"};
    if (std::regex_match(included, standard) || accepted.count(included)) return;
    report(
        source.path, line,
        "a public header includes only std, ours and <ATen/core/Tensor.h>, not <" + included + ">");
  }

  fs::path root_;
  LayerTable table_;
  std::vector<Source> sources_;
  std::map<fs::path, std::string> lists_;
  std::vector<std::string> found_;
};

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
  if (has_cycle(table))
    throw Error(ErrorCode::kInvalidArgument, "the table of modules has a cycle");
  return table;
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

std::vector<std::string> find_violations(const fs::path& root) { return Checker(root).run(); }

size_t count_sources(const fs::path& root) { return read_sources(root).size(); }

}  // namespace retort::house
