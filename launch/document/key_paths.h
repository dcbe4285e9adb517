// The paths of all keys of a recipe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace retort::launch {

// "train.max_steps", "roles.<name>.lora.r", "data.train[].path": in the order of the blocks.
std::vector<std::string> recipe_key_paths();

// Where a key of this name stands, for one that was written elsewhere: "data.max_length", or
// several, with "or" between them; "" where no key has the name.
std::string places_of_key(std::string_view key);

}  // namespace retort::launch
