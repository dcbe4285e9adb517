// Which tokens of a score are sent to a server that scores a whole sequence.
#pragma once

#include <cstdint>

#include "engines/contract/engine.h"

namespace retort::engines {

// kInvalidArgument for positions that are none (ScoreRequest), or a top_k below 0.
void check_score(const ScoreRequest& request);

// How many of request.token_ids decide about the last position: up to the token after it.
int64_t num_scored_tokens(const ScoreRequest& request);

}  // namespace retort::engines
