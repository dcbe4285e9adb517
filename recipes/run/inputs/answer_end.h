// The tokens that a chat template ends an answer with, and whether a completion ends at them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// What a template writes behind the content of an answer that ends a conversation.
struct AnswerEnd {
  std::string text;
  std::vector<int32_t> ids;
};

// Nothing behind it, where the template writes its own words instead of the content.
// kInvalidArgument where it refuses a conversation of a question and an answer.
AnswerEnd answer_end(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer);

// Whether a tokenizer has it as a special token, or as its eos_token.
bool is_end_sign(const models::Tokenizer& tokenizer, int32_t id);

// What is wrong where a completion does not end at the sign that ends an answer, so that a model
// that has learned it goes on behind it; nullopt: one of `end_ids` or of the texts `stop` is in
// what the template writes behind an answer, or it writes nothing there. `folder`: the model's.
std::optional<std::string> unheard_end(const models::ChatTemplate& chat,
                                       const models::Tokenizer& tokenizer,
                                       std::span<const int64_t> end_ids,
                                       std::span<const std::string> stop,
                                       const std::string& folder);

// The same of a recipe, with the key's name in front: of data.chat_template, and of the student's
// own template where the training rows have messages for it (`has_messages`), as a base model's may
// end answers by <|im_end|> and its config by <|endoftext|>. nullopt also for a recipe that trains
// scores. `chat`: of load_chat(recipe).
std::optional<std::string> unheard_end(const Recipe& recipe, const models::ChatTemplate& chat,
                                       const models::Tokenizer& tokenizer, bool has_messages);

}  // namespace retort::recipes
