// The JSON object that a server answers with.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace retort::engines {

// kCorrupt, naming the door, for text that is none, or is nested too deep to be read.
nlohmann::json json_object(const std::string& text, const std::string& door);

}  // namespace retort::engines
