// Which tokens end a completion.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config/config.h"
#include "models/text/tokenizer.h"

namespace retort::models {

// Those of config and generation config, and the tokenizer's own, each once.
std::vector<int64_t> end_token_ids(const ModelConfig& config, const Tokenizer& tokenizer);

}  // namespace retort::models
