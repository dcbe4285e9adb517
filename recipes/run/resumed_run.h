// Whether a run may go on from its checkpoint with the rows of now.
#pragma once

#include <filesystem>

#include "parallel/world.h"
#include "recipes/run/rank_context.h"
#include "recipes/run/recipe_run.h"

namespace retort::recipes {

// Rows may be mended that were not used yet; where a checkpoint does not say what a run has used,
// all must be as they were. What changed is told, once. Each rank reads the files that changed, so
// that none waits for another in the vote for as long as that takes.
// Collectives: a vote on the world, where the rows differ. Errors: those of compare_rows
// (recipes/data/resumed_rows.h), on every rank.
void check_resumed_rows(const RankContext& context, const std::filesystem::path& checkpoint,
                        const RecipeRun& work, parallel::World& world);

}  // namespace retort::recipes
