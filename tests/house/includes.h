// The #include lines of a source.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/house/sources.h"

namespace retort::house {

struct Include {
  size_t line;  // counted from 1
  std::string path;
  bool is_quoted;  // ours; packages stand in <>
};

std::vector<Include> includes_of(const Source& source);

}  // namespace retort::house
