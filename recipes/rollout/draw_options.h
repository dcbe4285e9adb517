// What a run asks of its generators, from its recipe.
#pragma once

#include <cstdint>

#include "models/config/config.h"
#include "models/generation/request.h"
#include "models/generation/stop_text.h"
#include "models/text/tokenizer.h"
#include "recipes/document/recipe.h"
#include "recipes/rollout/rollout_worker.h"

namespace retort::recipes {

// What `generation.stop` asks of an engine. kInvalidArgument as models::stop_rule.
models::StopRule stop_rule_of(const GenerationOptions& generation,
                              const models::Tokenizer& tokenizer);

// `student`: the model whose end tokens hold.
RolloutWorker::Options rollout_options(const Recipe& recipe, const models::ModelConfig& student,
                                       const models::Tokenizer& tokenizer);

// How the completions of one request are drawn, from the first `num_ids` tokens. `greedy`, for
// evaluation: always the most probable token, after the same penalties as in training.
models::DrawOptions draw_options(const RolloutWorker::Options& options, int64_t num_ids,
                                 bool greedy);

}  // namespace retort::recipes
