// Whether teachers can name more ids than the student.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// A warning at each teacher whose tokenizer has more ids than the student's: it may put its
// probability on them, which its answers alone show. Tokenizers are opened where the teacher's
// table is the larger one, which padding makes it among models of one family, too.
void warn_of_more_ids(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
