// What a reward is told of a prompt and its completion.
#pragma once

#include <cstdint>
#include <span>

#include "models/text/tokenizer.h"
#include "recipes/data/sample.h"
#include "recipes/rewards/reward.h"

namespace retort::recipes {

// The completion is left out.
rewards::RewardInput reward_input(const data::PromptSample& prompt);

// Adds the completion, as a reward reads it: without special tokens.
void add_completion(rewards::RewardInput& input, const models::Tokenizer& tokenizer,
                    std::span<const int32_t> token_ids, bool truncated);

}  // namespace retort::recipes
