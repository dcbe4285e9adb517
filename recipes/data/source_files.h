// The files that the path of a source names.
#pragma once

#include <string>
#include <vector>

#include "recipes/data/options.h"

namespace retort::data {

// A file: itself. A folder: the files in it, not in folders below, that end in .jsonl, .jsonl.gz,
// .jsonl.zst, .parquet or .arrow. Else a pattern with `*`, `?` and `[...]`: what it matches, hidden
// files left out; folders that it begins with are not of the pattern where they are there by that
// very name. In the order of their names' bytes, so that every host and run has the same.
// Empty if there is no such file.
std::vector<std::string> source_files(const std::string& path);

// Each source once for every file that its path names, otherwise alike. kInvalidArgument, naming
// the path, for one that names none, or whose pattern matches a folder or holds `**`.
std::vector<Source> expand_sources(const std::vector<Source>& sources);

}  // namespace retort::data
