// Turns our requests into the tensors of a model that keeps our convention.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engines/contract/engine.h"
#include "engines/kserve/binary_tensors.h"
#include "engines/kserve/served_model.h"

namespace retort::engines::kserve {

// Without an id. All throw kInvalidArgument naming the field of a request that the model cannot be
// asked, with what it can.

// given_logprobs if the model has it, topk_ids and topk_logprobs [R, K] if request.top_k > 0; K is
// the model's own where that is fixed.
InferQuestion score_question(const ServedModel& model, ScoreRequest request);
InferQuestion hidden_question(const ServedModel& model, ScoreRequest request);
// `positions`, if the model takes them, is the last token's.
InferQuestion reward_question(const ServedModel& model, RewardRequest request);

}  // namespace retort::engines::kserve
