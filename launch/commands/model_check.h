// Whether the models of a recipe's roles fit together, from what their folders say.
#pragma once

#include "recipes/recipe.h"

namespace retort::launch {

// Reads tokenizers and configs, no weights. kInvalidArgument naming the role: a tokenizer that
// numbers tokens differently from the student's, or a generator whose model has another shape than
// the student's, whose weights it takes over.
void check_models(const recipes::Recipe& recipe);

}  // namespace retort::launch
