#include "recipes/rollout/reward_input.h"

#include "models/generation/completion_spans.h"

namespace retort::recipes {
namespace {

// Adds what a role reads, which gets all tokens whoever said them.
void add_ids(rewards::RewardInput& input, std::span<const int32_t> token_ids,
             models::FinishReason reason) {
  input.completion_ids.assign(token_ids.begin(), token_ids.end());
  input.truncated = reason == models::FinishReason::kLength;
}

}  // namespace

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
  input.num_tokens = static_cast<int64_t>(token_ids.size());
  add_ids(input, token_ids, reason);
}

void add_episode(rewards::RewardInput& input, const models::Tokenizer& tokenizer,
                 const models::Completion& completion, std::span<const int32_t> prompt_ids,
                 const EpisodeRecord& record, const models::StopRule& stops) {
  input.completion = models::completion_text(tokenizer, models::last_turn(completion),
                                             completion.finish_reason, stops);
  input.num_tokens = models::num_model_tokens(completion);
  add_ids(input, completion.token_ids, completion.finish_reason);
  input.prompt_ids.assign(prompt_ids.begin(), prompt_ids.end());
  input.prompt = tokenizer.decode(prompt_ids, /*skip_special_tokens=*/false);
  input.episode = record.outcome;
}

}  // namespace retort::recipes
