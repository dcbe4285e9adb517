// `retort cache`: a recipe's teacher answers every row once, and what it says is kept.
#pragma once

#include "recipes/document/recipe.h"
#include "recipes/run/rank/rank_context.h"

namespace retort::recipes {

// Whether the payloads of the recipe's teacher can be kept. kInvalidArgument naming the key that
// speaks against it.
void check_cache_recipe(const Recipe& recipe);

// What a rank of the student does instead of training: asks the teacher for each batch of the first
// epoch, in the packs that a run of this recipe forms, and writes the payloads of the sequences
// that the cache, context.run_folder, has not yet. Goes on where an earlier call was stopped.
// Collectives: on the world; every rank calls. Threads: compute.
// Errors: kMismatch when the cache was begun with another teacher, tokenizer, rows or payload.
void write_payload_cache(const RankContext& context);

}  // namespace retort::recipes
