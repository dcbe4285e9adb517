// Which keys of a config.json the parser knows. Private to models/.
#pragma once

#include <set>
#include <string>

namespace retort::models {

// Keys that this parser reads, or that do not change the function of the decoder.
const std::set<std::string>& known_keys();

}  // namespace retort::models
