// The flag --columns.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace retort::launch {

using Columns = std::vector<std::string>;

// Reads pairs "prompt=question": canonical key -> column. kInvalidArgument naming one that is none.
std::map<std::string, std::string> parse_columns(const Columns& pairs);

}  // namespace retort::launch
