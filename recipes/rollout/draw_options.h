// What a run asks of its generators, from its recipe.
#pragma once

#include <cstdint>

#include "models/config.h"
#include "models/generation/request.h"
#include "models/text/tokenizer.h"
#include "recipes/recipe.h"
#include "recipes/rollout/rollout_worker.h"

namespace retort::recipes {

// A stop text that is one special token ends a completion as an end token does: generators match
// stop texts on what is said, without special tokens. `student`: the model whose end tokens hold.
RolloutWorker::Options rollout_options(const Recipe& recipe, const models::ModelConfig& student,
                                       const models::Tokenizer& tokenizer);

// How the completions of one request are drawn, from the first `num_ids` tokens. `greedy`, for
// evaluation: always the most probable token, after the same repetition penalty as in training.
models::DrawOptions draw_options(const RolloutWorker::Options& options, int64_t num_ids,
                                 bool greedy);

}  // namespace retort::recipes
