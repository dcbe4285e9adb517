// The small model of the tests that compare layouts: fewer key/value heads than some tp, a
// vocabulary that nothing divides, the biases, norms and rotary embeddings of its family.
#pragma once

#include <cstdint>

#include "models/config/config.h"

namespace retort::roles {

inline models::ModelConfig nano_model(models::Family family, bool tied, int64_t layers) {
  models::ModelConfig config;
  config.family = family;
  config.vocab_size = 67;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;
  config.sliding_window.assign(static_cast<size_t>(layers), 0);
  config.tie_word_embeddings = tied;
  config.attention_bias = family == models::Family::kQwen2;
  config.attention_out_bias = config.mlp_bias = family == models::Family::kLlama;
  models::apply_family(config);
  if (family == models::Family::kPhi3) config.rope.partial_rotary_factor = 0.75;
  if (family == models::Family::kGemma2) config.attn_logit_softcapping = 2.0;
  if (family == models::Family::kGemma3) config.sliding_rope = models::Rope{.theta = 100.0};
  if (config.norm_unit_offset) config.query_pre_attn_scalar = 12;
  return config;
}

}  // namespace retort::roles
