// What the engine's tests share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/generation/engine.h"
#include "models/ops/packed.h"

namespace retort::models {

inline ModelConfig engine_config() {
  ModelConfig config;
  config.family = Family::kLlama;
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 100;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = 512;
  config.initializer_range = 0.15;
  config.sliding_window = {0, 0};
  return config;
}

inline std::vector<int32_t> engine_tokens(size_t count, uint32_t state) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>(state >> 8) % 300);
  }
  return ids;
}

// Prompts of different lengths: 3, 20, 37, ...
inline std::vector<std::vector<int32_t>> engine_prompts(size_t count) {
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < count; ++i)
    prompts.push_back(engine_tokens(3 + 17 * i % 90, static_cast<uint32_t>(i)));
  return prompts;
}

inline void expect_same_bits(const std::vector<Completion>& a, const std::vector<Completion>& b,
                             const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token_ids, b[i].token_ids) << what << " " << i;
    EXPECT_EQ(a[i].logps, b[i].logps) << what << " " << i;
    EXPECT_EQ(a[i].sampling_logps, b[i].sampling_logps) << what << " " << i;
    EXPECT_EQ(a[i].finish_reason, b[i].finish_reason) << what << " " << i;
  }
}

// fp64 log-probabilities of the token after `ids`, from one forward over all of them.
inline at::Tensor next_log_probs(const Decoder& decoder, const std::vector<int32_t>& ids) {
  const at::Tensor states = decoder.hidden(pack_rows({ids}));
  return at::log_softmax(decoder.logits(states)[-1].to(at::kDouble), 0);
}

}  // namespace retort::models
