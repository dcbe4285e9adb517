#include "tests/house/class_rules.h"

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "tests/house/function_bodies.h"

namespace retort::house {
namespace fs = std::filesystem;
namespace {

// The qualifier of the function that a head declares: "Session" of "void Session::send(int x)";
// "" of one that has none. A name that begins small is a namespace.
std::string class_of_head(std::string head) {
  // Template arguments hold parentheses too, as in std::function<void(int)>.
  static const std::regex arguments("<[^<>]*>");
  for (std::string before; before != head;) {
    before = head;
    head = std::regex_replace(head, arguments, "");
  }

  static const std::regex member(R"(.*?((?:\w+::)*[A-Z]\w*)::(?:~?\w+|operator\b.*)\s*)");
  std::smatch match;
  const std::string declarator = head.substr(0, head.find('('));
  return std::regex_match(declarator, match, member) ? match[1].str() : "";
}

// The names of namespaces at the head of a .cc, outermost first: "retort::rpc::detail".
std::string namespace_of(const Source& source) {
  static const std::regex opening(R"(namespace ([\w:]+) \{)");
  std::string name;
  std::smatch match;
  for (const auto& line : source.lines)
    if (std::regex_match(line, match, opening)) name += (name.empty() ? "" : "::") + match[1].str();
  return name;
}

// The classes that the file itself defines.
std::set<std::string> own_classes(const Source& source) {
  static const std::regex definition(R"(\s*(?:class|struct) (?:\[\[\w+\]\] )?([\w:]+)[^;]*\{.*)");
  std::set<std::string> names;
  std::smatch match;
  for (const auto& line : source.lines) {
    if (line.find("class ") == std::string::npos && line.find("struct ") == std::string::npos)
      continue;
    if (std::regex_match(line, match, definition)) names.insert(match[1]);
  }
  return names;
}

}  // namespace

void check_classes(const std::vector<Source>& sources, const LayerTable& modules,
                   const ReportAt& report) {
  // Module and class -> the file that was met first.
  std::map<std::pair<std::string, std::string>, fs::path> home;
  for (const auto& source : sources) {
    const std::string module = module_of(source.path);
    if (source.path.extension() != ".cc" || !modules.count(module)) continue;
    const std::set<std::string> own = own_classes(source);
    const std::string space = namespace_of(source);

    std::set<std::string> told;
    for (const auto& body : find_function_bodies(source.lines)) {
      const std::string name = class_of_head(body.head);
      if (name.empty() || own.count(name)) continue;
      const auto [at, is_new] = home.try_emplace({module, space + "::" + name}, source.path);
      if (!is_new && at->second != source.path && told.insert(name).second)
        report(source.path, body.first + 1,
               "the class " + name + " has its .cc: " + at->second.string() +
                   "; what outgrows one file is a class of its own");
    }
  }
}

}  // namespace retort::house
