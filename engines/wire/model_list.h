// The models that a server of OpenAI's protocol lists.
#pragma once

#include <cstdint>
#include <string>

namespace retort::engines {

struct ListedModel {
  std::string name;
  int64_t context_tokens = 0;  // 0: it does not say
};

// Finds the model in the answer of /v1/models. `wanted`: ExternalOptions::served_model.
// kInvalidArgument if it is empty and several are listed, kMismatch if it is not listed; both list
// what is. kCorrupt for another answer.
ListedModel find_listed_model(const std::string& json, const std::string& wanted);

}  // namespace retort::engines
