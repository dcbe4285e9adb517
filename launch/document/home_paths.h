// The home folder in the paths of a recipe.
#pragma once

#include "recipes/document/recipe.h"

namespace retort::launch {

// "~" and "~/..." become the home folder of this environment (base/near_file.h) in what the recipe
// reads and writes: models, adapters, data, tokenizers, certificates, keys, templates, caches and
// output_dir. Not with backend: kubernetes, whose pods have another home.
void expand_home(recipes::Recipe& recipe);

}  // namespace retort::launch
