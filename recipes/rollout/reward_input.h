// What a reward is told of a prompt and its completion.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "models/generation/request.h"
#include "models/generation/stop_text.h"
#include "models/text/tokenizer.h"
#include "recipes/data/sample.h"
#include "recipes/rewards/reward.h"

namespace retort::recipes {

// The completion is left out.
rewards::RewardInput reward_input(const data::PromptSample& prompt);

// Adds the completion: its text as models::completion_text cuts it, its ids as they were drawn.
void add_completion(rewards::RewardInput& input, const models::Tokenizer& tokenizer,
                    std::span<const int32_t> token_ids, models::FinishReason reason,
                    const models::StopRule& stops);

// Adds what a sample came to that is an episode (models::Completion::episode). Its completion is
// then what the model said last. kCorrupt for what is no record of one.
void add_episode(rewards::RewardInput& input, const std::string& record);

}  // namespace retort::recipes
