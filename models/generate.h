// Greedy and sampled generation with a KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/decoder.h"

namespace retort::models {

struct GenerateOptions {
  int64_t max_new_tokens = 256;
  double temperature = 0.0;  // 0: greedy
  double top_p = 1.0;
  int64_t top_k = 0;  // 0: off
  uint64_t seed = 0;
  std::vector<int64_t> eos_token_ids;
  int64_t max_batch = 32;  // prompts computed together
};

struct Completion {
  std::vector<int32_t> token_ids;  // without the prompt; includes the end token if one was produced
  std::vector<float> logps;        // log-probability of each token under the model at temperature 1, fp32
  bool finished = false;           // an end token was produced
};

// One completion for each prompt, in order. Sampling noise is a function of (seed, sample index, position, token id): no draw
// depends on the batch. `on_token(sample, token)` (optional) streams. Inference mode inside.
std::vector<Completion> generate(const Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& options, const std::function<void(size_t, int32_t)>& on_token = {});

}  // namespace retort::models
