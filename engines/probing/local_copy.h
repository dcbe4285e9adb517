// Asks the local copy of an engine's model the same questions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engines/contract/engine.h"
#include "models/decoder/decoder.h"

namespace retort::engines {

// These answer as Engine::score and Engine::hidden_states do, but are computed here. Memory:
// [tokens, H] hidden states and logits in pieces. kInvalidArgument for ids outside the copy's
// vocabulary.
Scored score_locally(const models::Decoder& copy, const ScoreRequest& request);
at::Tensor hidden_locally(const models::Decoder& copy, const ScoreRequest& request);  // [R, H]
// The first `count` tokens of a greedy completion; nothing ends it.
std::vector<int32_t> greedy_locally(const models::Decoder& copy, const std::vector<int32_t>& prompt,
                                    int64_t count);

}  // namespace retort::engines
