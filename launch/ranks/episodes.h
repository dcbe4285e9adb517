// A generator's backend with what makes its completions episodes.
#pragma once

#include <memory>

#include "launch/ranks/serving_rank.h"
#include "models/text/tokenizer.h"
#include "recipes/run/rank/rank_context.h"
#include "roles/generator/sample_backend.h"

namespace retort::launch {

// `backend` itself where the recipe has no environment, and on a rank that only follows; else one
// that asks the environment's role, to which `rank` then connects. `tokenizer`: the student's.
std::unique_ptr<roles::SampleBackend> with_episodes(const recipes::RankContext& context,
                                                    ServingRank& rank, models::Tokenizer tokenizer,
                                                    std::unique_ptr<roles::SampleBackend> backend);

}  // namespace retort::launch
