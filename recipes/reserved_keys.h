// Names of the recipe language that this version does not have yet, so that using one says so
// instead of "unknown key".
#pragma once

#include <string>
#include <string_view>

namespace retort::recipes {

// `name`: "path" of a key or "path=value" of a choice. "" when it is no known name of a later
// version.
std::string reserved_key(std::string_view name);

}  // namespace retort::recipes
