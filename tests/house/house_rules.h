// The rules of the house that a program can check: who may include whom, what a public header may
// pull in, sizes, names; and those of text_rules.h and function_bodies.h.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace retort::house {

// Module -> the modules it may include (itself not listed).
using LayerTable = std::map<std::string, std::set<std::string>>;

// Reads the lines "name -> other, other   remark" of the first ``` block that has one.
// Errors: kInvalidArgument if there is none, if an edge names a module without a line, or if the
// edges have a cycle.
LayerTable read_layer_table(std::string_view markdown);

// The module a path (relative to the root) belongs to: "recipes/data/x.h" is data, "rpc/detail/x.h"
// is rpc; "" for a file at the top.
std::string module_of(const std::filesystem::path& relative);

// Every broken rule under `root`, as "path:line: what is wrong", sorted. Reads docs/architecture.md
// for the table.
std::vector<std::string> find_violations(const std::filesystem::path& root);

// The number of source files that find_violations looks at.
size_t count_sources(const std::filesystem::path& root);

}  // namespace retort::house
