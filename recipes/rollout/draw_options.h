// What a run asks of its generators, from its recipe.
#pragma once

#include <cstdint>
#include <filesystem>

#include "models/config.h"
#include "models/text/tokenizer.h"
#include "recipes/recipe.h"
#include "recipes/rollout/rollout.h"
#include "roles/generator/methods.h"

namespace retort::recipes {

// A stop text that is one special token ends a completion as an end token does: generators match
// stop texts on what is said, without special tokens. `student`: the model whose end tokens hold.
RolloutWorker::Options rollout_options(const Recipe& recipe, const models::ModelConfig& student,
                                       const models::Tokenizer& tokenizer,
                                       const std::filesystem::path& run_folder);

// How the completions of one request are drawn, from the first `num_ids` tokens. `greedy`: the most
// probable token of the whole distribution, for evaluation.
roles::DrawOptions draw_options(const RolloutWorker::Options& options, int64_t num_ids,
                                bool greedy);

}  // namespace retort::recipes
