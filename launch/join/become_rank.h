// From the process that joined a run to the process of its rank.
#pragma once

#include "launch/process/child_context.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// Replaces this process by `retort role`, with the arguments, the environment and the input that a
// launcher would have started it with: its number, its output and whoever waits for it stay. The
// variables of OpenMP and the like are read when a program is loaded, which is why it is loaded
// again. kUnavailable if the system does not do it.
[[noreturn]] void become_rank(const ChildContext& context, const recipes::Recipe& recipe);

}  // namespace retort::launch
