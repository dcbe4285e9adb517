// Where a rank of the student begins: at its first step, or at a checkpoint that must fit what the
// recipe says now. Without one `checkpoint` is empty.
#pragma once

#include <filesystem>
#include <string>

#include "models/decoder/decoder.h"
#include "parallel/world.h"
#include "recipes/run/checkpoints/loop_state.h"
#include "recipes/run/rank/rank_context.h"
#include "recipes/run/rank/recipe_run.h"

namespace retort::recipes {

// The checkpoint that all ranks go on from; empty for a run that begins anew.
// The others wait in a vote for a rank that does not see the checkpoint yet.
std::filesystem::path resume_point(const RankContext& context, parallel::World& world);

// What chat templates print: the recipe's day, else that on which the run began, as its checkpoint
// has it; one of before days were kept has none, and prints the moment as it always did. The ranks
// may begin on both sides of midnight, so the first one says it.
// Collectives: a broadcast on the world, unless the recipe says it.
std::string template_day(const RankContext& context, const std::filesystem::path& checkpoint,
                         parallel::World& world);

// The student with the checkpoint's weights, and its adapter where it trains one.
// kInvalidArgument for a checkpoint that does not hold what the recipe trains.
models::Decoder load_student(const RankContext& context, parallel::World& world,
                             const std::filesystem::path& checkpoint);

// What the loop begins with, but for what is said of the rows (DataFingerprint::complete).
// kInvalidArgument where the seed or the adapter of the reference is another one.
LoopState starting_state(const RankContext& context, const std::filesystem::path& checkpoint,
                         const std::string& day, parallel::Layout layout);

// Whether a run may go on from its checkpoint with the rows of now.
// Rows may be mended that were not used yet; where a checkpoint does not say what a run has used,
// all must be as they were. What changed is told, once. Each rank reads the files that changed, so
// that none waits for another in the vote for as long as that takes.
// Collectives: a vote on the world, where the rows differ. Errors: those of compare_rows
// (recipes/data/resumed_rows.h), on every rank.
void check_resumed_rows(const RankContext& context, const std::filesystem::path& checkpoint,
                        const RecipeRun& work, parallel::World& world);

}  // namespace retort::recipes
