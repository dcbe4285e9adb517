// A model of two layers and tokens for it: what the tests of the decoder share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"

namespace retort::models {

inline ModelConfig small_config() {
  ModelConfig config;
  config.family = Family::kQwen2;
  config.vocab_size = 300;
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 32;
  config.max_position_embeddings = 512;
  config.initializer_range = 0.1;
  config.attention_bias = true;
  config.sliding_window = {0, 0};
  return config;
}

inline std::vector<int32_t> some_tokens(size_t count, uint32_t state) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>(state >> 8) % 300);
  }
  return ids;
}

inline std::vector<std::pair<std::string, at::Tensor>> tensors_of(const Decoder& decoder) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, value, shard] : decoder.parameters())
    tensors.emplace_back(name, value);
  return tensors;
}

}  // namespace retort::models
