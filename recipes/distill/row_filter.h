// Which rows a distillation can use.
#pragma once

#include "recipes/data/dataset.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// A row is bad that no teacher's `when` matches and, with lmbda above 0, one whose prompt the
// student cannot continue within data.max_length: also for off-policy steps, as a row does not know
// its step.
data::SampleRule distill_row_rule(const Recipe& recipe);

}  // namespace retort::recipes
