// Choosing one token from logits. Private to models/.
#pragma once

#include <cstdint>

#include "models/generate.h"

namespace retort::models {

struct Choice {
  int32_t token = 0;
  float logp = 0;  // at temperature 1, over the whole vocabulary
};

// `logits` [vocab_size] fp32. Greedy takes the first maximum. Sampling scales by the temperature, keeps the top_k, then the
// smallest set of most probable tokens that reaches top_p, and takes the maximum of logit plus Gumbel noise of
// (seed, sample, position, token id). kCorrupt when the logits are not finite.
Choice choose_token(const float* logits, int64_t vocab_size, const GenerateOptions& options, uint64_t sample, uint64_t position);

}  // namespace retort::models
