// The JSON that commands and services get and give.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "recipes/rewards/reward.h"

namespace retort::rewards::detail {

using Json = nlohmann::ordered_json;

// {prompt, question, completion, reference, num_tokens, truncated, fields}; `reference` null if
// there is none. Of an episode also `messages`, its whole conversation.
Json to_json(const RewardInput& input);
// One line; bytes that are not UTF-8 are replaced.
std::string dump(const Json& value);
// A score: a finite number, or null. Fills `why` and returns false for anything else.
bool read_score(const Json& value, std::optional<double>& score, std::string& why);

}  // namespace retort::rewards::detail
