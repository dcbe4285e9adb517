#include "recipes/rollout/reward_input.h"

namespace retort::recipes {

rewards::RewardInput reward_input(const data::PromptSample& prompt) {
  return {.prompt = prompt.prompt_text,
          .completion = {},
          .question = prompt.question,
          .reference = prompt.reference,
          .fields = prompt.fields,
          .origin = prompt.origin,
          .prompt_ids = prompt.prompt_ids,
          .completion_ids = {},
          .is_chat = prompt.is_chat};
}

void add_completion(rewards::RewardInput& input, const models::Tokenizer& tokenizer,
                    std::span<const int32_t> token_ids, models::FinishReason reason,
                    const models::StopRule& stops) {
  input.completion = models::completion_text(tokenizer, token_ids, reason, stops);
  input.completion_ids.assign(token_ids.begin(), token_ids.end());
  input.num_tokens = static_cast<int64_t>(token_ids.size());
  input.truncated = reason == models::FinishReason::kLength;
}

}  // namespace retort::recipes
