#include "tests/house/house_rules.h"

#include <algorithm>
#include <regex>
#include <set>
#include <utility>

#include "base/file.h"
#include "tests/house/cited_names.h"
#include "tests/house/class_rules.h"
#include "tests/house/cmake_lists.h"
#include "tests/house/function_bodies.h"
#include "tests/house/header_rules.h"
#include "tests/house/includes.h"
#include "tests/house/layers.h"
#include "tests/house/packages.h"
#include "tests/house/rooms.h"
#include "tests/house/sources.h"
#include "tests/house/text_rules.h"

namespace retort::house {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxLines = 500;
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

class Checker {
 public:
  Checker(const fs::path& root, const Rules& rules)
      : root_(root),
        rules_(rules),
        architecture_(read_file(root / "docs/architecture.md")),
        table_(read_layer_table(architecture_)),
        sources_(read_sources(root)),
        lists_(sources_) {}

  std::vector<std::string> run() {
    for (const auto& source : sources_)
      check(source);
    const CitedNames names(sources_);
    for (const auto& document : read_documents(root_)) {
      check_text(document);
      const Report report_here = [&](size_t line, const std::string& what) {
        report(document.path, line, what);
      };
      if (document.path == "docs/architecture.md" || document.path == "docs/tour.md")
        names.check_paths(document, report_here);
      if (document.path == "docs/tour.md") names.check_identifiers(document, report_here);
    }
    check_tree();
    std::sort(found_.begin(), found_.end());
    return found_;
  }

 private:
  void report(const fs::path& path, size_t line, const std::string& what) {
    found_.push_back(path.string() + ":" + std::to_string(line) + ": " + what);
  }

  // Other modules may include only what HEADERS lists; the rest, and all of detail/, is private.
  bool is_private(const fs::path& path) const { return is_detail(path) || !lists_.is_public(path); }

  // The rules about how files stand to one another.
  void check_tree() {
    const ReportAt report_at = [&](const fs::path& path, size_t line, const std::string& what) {
      report(path, line, what);
    };
    check_packages(architecture_, sources_, report_at);
    if (rules_.rooms) Rooms(sources_, table_).check(architecture_, report_at);
    if (rules_.one_source_of_a_class) check_classes(sources_, table_, report_at);

    const HeaderRules headers(sources_, table_);
    if (rules_.rent) headers.check_rent(rules_.rent_exceptions, report_at);
    if (rules_.public_headers) headers.check_public(lists_, report_at);
  }

  void check_text(const Source& source) {
    const Report report_here = [&](size_t line, const std::string& what) {
      report(source.path, line, what);
    };
    check_width(source, report_here);
    check_citations(source, root_, report_here);
    if (!is_cxx(source.path)) return;
    check_paragraphs(source, report_here);
    if (rules_.length_of_functions) check_length(source, report_here);
  }

  void check(const Source& source) {
    check_text(source);
    if (source.lines.size() > kMaxLines)
      report(source.path, source.lines.size(),
             "more than " + std::to_string(kMaxLines) + " lines; split it by concept");
    if (std::regex_match(source.path.stem().string(), kEmptyName))
      report(source.path, 1, "the name says nothing; name it after the one concept it holds");
    if (kShadowing.count(source.path.string()))
      report(source.path, 1, "the name hides a system header");
    if (is_cxx(source.path)) check_cxx(source);
  }

  void check_cxx(const Source& source) {
    if (!is_header(source.path) && !lists_.name(source.path))
      report(source.path, 1,
             "no CMakeLists.txt of its folder or above names it, so it is never compiled");
    if (is_header(source.path) && std::none_of(source.lines.begin(), source.lines.end(),
                                               [](auto& line) { return line == "#pragma once"; }))
      report(source.path, 1, "no #pragma once");

    check_engine_kinds(source);

    bool first = true;
    for (const auto& include : includes_of(source)) {
      if (std::exchange(first, false)) check_first_include(source, include.line, include.path);
      include.is_quoted ? check_own_include(source, include.line, include.path)
                        : check_system_include(source, include.line, include.path);
    }
  }

  // Whoever decides by what an engine is called has to be found when there is another one.
  void check_engine_kinds(const Source& source) {
    const std::string module = module_of(source.path);
    if (module == "engines" || kSeesEverything.count(module)) return;
    for (size_t i = 0; i < source.lines.size(); ++i)
      if (source.lines[i].find(kEngineKind) != std::string::npos)
        report(source.path, i + 1,
               "decides by the kind of an engine; ask engines/contract/traits.h what that "
               "kind can do");
  }

  // That proves the header to compile alone: cmake/RetortModule.cmake verifies only those without.
  void check_first_include(const Source& source, size_t line, const std::string& included) {
    if (source.path.extension() != ".cc") return;
    const std::string header = fs::path(source.path).replace_extension(".h").string();
    if (included != header && fs::exists(root_ / header))
      report(source.path, line, "the first include is not its own header, \"" + header + "\"");
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

    // A .cc may include what it likes; a header decides for everybody who includes it.
    if (!is_header(source.path)) return;
    if (included == "torch/torch.h")
      return report(source.path, line, "<torch/torch.h> costs every includer 20 s; not in headers");
    if (is_detail(source.path)) return;
    static const std::regex third_party(
        "(tensorpipe/|yaml-cpp/|boost/beast).*|nccl.h|cuda_runtime.h");
    if (std::regex_match(included, third_party))
      return report(source.path, line,
                    "<" + included + "> belongs into a .cc or a header in detail/");

    // What a public header brings in, other modules have to have.
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
  Rules rules_;
  std::string architecture_;  // the document with the tables
  LayerTable table_;
  std::vector<Source> sources_;
  CMakeLists lists_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> find_violations(const fs::path& root, const Rules& rules) {
  return Checker(root, rules).run();
}

size_t count_sources(const fs::path& root) { return read_sources(root).size(); }

std::string room_block(const fs::path& root) {
  const LayerTable modules = read_layer_table(read_file(root / "docs/architecture.md"));
  return Rooms(read_sources(root), modules).text();
}

}  // namespace retort::house
