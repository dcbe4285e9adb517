// Whose the tokens of a completion are: the model's, or of an environment that answered it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/generation/request.h"

namespace retort::models {

// [tokens] of a completion: 1 where one is the model's.
std::vector<uint8_t> model_tokens(const Completion& completion);
int64_t num_model_tokens(const Completion& completion);

// The tokens that the model said last: its last span, all tokens of a completion without spans.
// Empty where it said nothing.
std::span<const int32_t> last_turn(const Completion& completion);

// Takes from the completion of an episode the prompt that its environment wrote, which stands
// before all else, and returns its tokens; empty where there is none.
std::vector<int32_t> take_prompt(Completion& completion);

}  // namespace retort::models
