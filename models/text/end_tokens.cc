#include "models/text/end_tokens.h"

#include <algorithm>

namespace retort::models {

std::vector<int64_t> end_token_ids(const ModelConfig& config, const Tokenizer& tokenizer) {
  std::vector<int64_t> ids = config.eos_token_ids;
  const int64_t own = tokenizer.eos_id();
  if (own >= 0 && std::find(ids.begin(), ids.end(), own) == ids.end()) ids.push_back(own);
  return ids;
}

}  // namespace retort::models
