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
#include "recipes/rollout/episode_record.h"

namespace retort::recipes {

// The completion is left out.
rewards::RewardInput reward_input(const data::PromptSample& prompt);

// Adds the completion: its text as models::completion_text cuts it, its ids as they were drawn.
void add_completion(rewards::RewardInput& input, const models::Tokenizer& tokenizer,
                    std::span<const int32_t> token_ids, models::FinishReason reason,
                    const models::StopRule& stops);
// Adds what an episode came to: the text of the model's last turn, the number of tokens that the
// model drew, all ids, its own prompt, and what its record says. `completion`: without that prompt.
void add_episode(rewards::RewardInput& input, const models::Tokenizer& tokenizer,
                 const models::Completion& completion, std::span<const int32_t> prompt_ids,
                 const EpisodeRecord& record, const models::StopRule& stops);

}  // namespace retort::recipes
