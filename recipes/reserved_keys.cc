#include "recipes/reserved_keys.h"

#include <array>
#include <utility>

namespace retort::recipes {
namespace {

using Entry = std::pair<std::string_view, std::string_view>;

// `*` stands for one part of a path. The text completes "... not in this version".
constexpr std::array<Entry, 4> kLater{{
    {"roles.*.attach", "attaching to a served role is"},
    {"roles.*.world.cp", "context parallelism is"},
    {"roles.*.world.ep", "expert parallelism is"},
    {"train.optim", "another optimizer than AdamW is"},
}};

bool matches(std::string_view pattern, std::string_view name) {
  while (!pattern.empty()) {
    if (pattern.starts_with('*')) {
      pattern.remove_prefix(1);
      const size_t end = name.find('.');
      if (end == 0 || end == std::string_view::npos) return false;
      name.remove_prefix(end);
    } else if (name.empty() || pattern.front() != name.front()) {
      return false;
    } else {
      pattern.remove_prefix(1);
      name.remove_prefix(1);
    }
  }
  return name.empty();
}

}  // namespace

std::string reserved_key(std::string_view name) {
  for (const auto& [pattern, what] : kLater)
    if (matches(pattern, name)) return std::string(what) + " not in this version";
  return "";
}

}  // namespace retort::recipes
