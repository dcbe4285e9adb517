// Tables of who may use whom, and the names of modules.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace retort::house {

// Name -> the names it may use (itself not listed).
using LayerTable = std::map<std::string, std::set<std::string>>;

// Reads the lines "name -> other, other   remark" of the first ``` block that has one.
// Errors: kInvalidArgument if there is none, if an edge names a module without a line, or if the
// edges have a cycle.
LayerTable read_layer_table(std::string_view markdown);

// Every pair that uses each other, as two names, then every longer circle that is left without
// those, as its names in order; empty if there is none.
std::vector<std::vector<std::string>> find_circles(LayerTable table);

// "a -> b -> a".
std::string circle_text(const std::vector<std::string>& circle);

// The names of a table without circles, users first: each uses only names after it.
std::vector<std::string> users_first(const LayerTable& table);

// The module a path (relative to the root) belongs to: "recipes/data/x.h" is data, "rpc/detail/x.h"
// is rpc; "" for a file at the top.
std::string module_of(const std::filesystem::path& relative);

}  // namespace retort::house
