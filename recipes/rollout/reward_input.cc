#include "recipes/rollout/reward_input.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

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

void add_episode(rewards::RewardInput& input, const std::string& record) {
  using nlohmann::json;
  const json episode = json::parse(record, nullptr, /*allow_exceptions=*/false);
  if (!episode.is_object() || !episode.contains("messages") || !episode["messages"].is_array())
    throw Error(ErrorCode::kCorrupt, "what an episode came to has no messages")
        .with("row", input.origin);

  input.episode = record;
  input.completion.clear();
  for (const json& message : episode["messages"]) {
    const bool said = message.is_object() && message.value("role", json()) == "assistant" &&
                      message.contains("content") && message["content"].is_string();
    if (said) input.completion = message["content"].get<std::string>();
  }
}

}  // namespace retort::recipes
