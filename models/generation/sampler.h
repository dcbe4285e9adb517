// Choosing one token from logits. Private to models/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/generation/request.h"

namespace retort::models {

struct Choice {
  int32_t token = 0;
  float logp = 0;           // at temperature 1, over the whole vocabulary, without penalty
  float sampling_logp = 0;  // of the distribution it was drawn from
};

// Buffers that are kept between calls; one for each thread.
struct SamplerScratch {
  std::vector<float> scores, weights;
  std::vector<double> mass;
  std::vector<int32_t> counts, ids;
};

// `logits` [vocab_size] fp32; `seen`: the ids that the repetition penalty applies to, each once.
// Greedy takes the first maximum. kCorrupt when the logits are not finite. Cost: a few passes over
// the vocabulary, no sort of it.
Choice choose_token(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    std::span<const int32_t> seen, uint64_t sample, uint64_t position,
                    SamplerScratch& scratch);

}  // namespace retort::models
