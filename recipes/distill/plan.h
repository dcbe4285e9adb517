// What a distillation adds to `retort plan`.
#pragma once

#include <cstdint>

#include "recipes/document/recipe.h"
#include "recipes/type/plan.h"

namespace retort::recipes {

// Steps whose answers are asked for ahead. Where the student of now draws the batches nothing can
// be.
int64_t prefetched_steps(const DistillOptions& options);

RecipePlan plan_distill(const Recipe& recipe);

}  // namespace retort::recipes
