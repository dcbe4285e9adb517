// What a family of decoders is: one entry of a table says all that the parser, the writer and the
// exports of a config have to know of it. Private to models/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/config/activation.h"
#include "models/config/config.h"

namespace retort::models {

// Where the windows of a family's layers stand in its config.json.
enum class WindowKeys : uint8_t {
  kNone,          // its layers have none
  kOneForAll,     // sliding_window, of every layer
  kSwitchedOn,    // of layer_types, else from max_window_layers on, if use_sliding_window says so
  kAlternating,   // of layer_types, else of all layers but each full_attention_every-th
  kPatternNamed,  // the same, and sliding_window_pattern is the file's word for that number
};

// Which of the biases that ModelConfig has are the family's, or its files' to say.
enum class BiasKeys : uint8_t {
  kNone,          // no biases, and attention_bias is no key of the family
  kRefused,       // no biases, and attention_bias may say nothing else
  kQkvAlways,     // of q, k and v, whatever the file says
  kAttention,     // attention_bias: of q, k, v and o
  kAttentionMlp,  // the same, and mlp_bias
};

struct FamilyTraits {
  Family family;
  const char* name;  // for messages
  const char* model_type;
  const char* architecture;
  const char* gguf_architecture = nullptr;  // llama.cpp's graph of it; null: the export has none

  // What a config.json leaves unsaid, as transformers 5 fills it in.
  int64_t num_key_value_heads = 0;  // 0: one for each attention head
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings;
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6;
  // -1: none
  int64_t bos_token_id = -1;
  int64_t eos_token_id = -1;
  int64_t pad_token_id = -1;

  // What is the same in every model of the family.
  bool qk_norm = false;
  Activation activation = Activation::kSilu;
  const char* activation_key = "hidden_act";  // of a config.json that is written anew
  bool norm_unit_offset = false;
  bool output_norms = false;
  bool scaled_embedding = false;
  bool fused_projections = false;
  BiasKeys biases = BiasKeys::kNone;

  // Numbers that only some families have, where the file says none; nullopt: the key is refused.
  std::optional<double> query_pre_attn_scalar = std::nullopt;
  std::optional<double> attn_logit_softcapping = std::nullopt;
  std::optional<double> final_logit_softcapping = std::nullopt;

  // The rotary embedding. With a sliding_rope_theta layers with a window have their own.
  double rope_theta = 10000.0;
  std::optional<double> sliding_rope_theta = std::nullopt;
  // Phi-3: a part of each head may rotate; the only scaling is longrope, which has older names.
  bool partial_rotation = false;
  bool only_longrope = false;

  // The windows.
  WindowKeys windows = WindowKeys::kNone;
  int64_t sliding_window = 4096;  // where the file says none; 0: there is none then
  int64_t full_attention_every = 0;
};

const FamilyTraits& family_traits(Family family);
// Null for a model_type that is not known.
const FamilyTraits* find_family(const std::string& model_type);
std::string known_model_types();  // "llama, mistral, ..."
std::string exported_families();  // those with a gguf_architecture: "Llama, Mistral and Qwen2"

}  // namespace retort::models
