// Names that are not in the recipe language, but that people write: those of a later version, and
// those that other programs have for what is called otherwise here.
#pragma once

#include <string>
#include <string_view>

namespace retort::recipes {

// `name`: "path" of a key or "path=value" of a choice. What to write instead, or that this version
// does not have it; "" when nothing is known of the name.
std::string reserved_key(std::string_view name);

}  // namespace retort::recipes
