// The recipe reference in docs/, made from the same fields that read recipes.
#pragma once

#include <string>

namespace retort::launch {

// docs/recipe.md: one table per block with key, type or choices, default and meaning. A test keeps
// the file in step.
std::string recipe_reference_markdown();

}  // namespace retort::launch
