// What a config.json leaves unsaid, family by family, as transformers 5 fills it in. Private to
// models/.
#pragma once

#include <cstdint>
#include <string>

#include "models/config.h"

namespace retort::models {

struct FamilyDefaults {
  Family family;
  const char* model_type;
  const char* architecture;
  int64_t num_key_value_heads;  // 0: one for each attention head
  int64_t head_dim;             // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings;
  bool tie_word_embeddings;
  double rope_theta;
  double rms_norm_eps;
  // -1: none
  int64_t bos_token_id;
  int64_t eos_token_id;
  int64_t pad_token_id;
};

const FamilyDefaults& family_defaults(Family family);
// Null for a model_type that is not known.
const FamilyDefaults* find_family(const std::string& model_type);
std::string known_model_types();  // "llama, mistral, ..."

inline bool is_gemma(Family family) {
  return family == Family::kGemma2 || family == Family::kGemma3;
}

}  // namespace retort::models
