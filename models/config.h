// What a Hugging Face config.json says of a decoder, in the style of transformers 4 and of
// transformers 5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace retort::models {

enum class Family { kLlama, kMistral, kQwen2, kQwen3 };

// Rotary embedding: plain ("default") or Llama 3's frequency-dependent scaling; "linear" too.
struct Rope {
  std::string type = "default";  // default | linear | llama3
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

struct ModelConfig {
  Family family = Family::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  Rope rope;
  bool tie_word_embeddings = false;
  bool attention_bias = false;      // q, k, v biases
  bool attention_out_bias = false;  // o_proj bias (Llama's attention_bias sets both)
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3: RMSNorm over head_dim on q and k
  // per layer; 0 = full attention; token i sees j with j > i - window
  std::vector<int64_t> sliding_window;
  std::string torch_dtype = "float32";  // of the file: float32 | bfloat16 | float16
  int64_t bos_token_id = -1;
  int64_t pad_token_id = -1;
  // of generation_config.json where the folder has one that names them
  std::vector<int64_t> eos_token_ids;
  // the whole config.json as read, so that unknown keys are written back
  std::string raw_json;
  std::vector<std::string> unknown_keys;  // kept, written back, listed once by the loader

  int64_t num_parameters() const;
};

// Parses and validates. kInvalidArgument naming the key for an unsupported model_type or a value
// that changes the function and is not implemented (hidden_act, rope type, pretraining_tp,
// quantization_config, ...). `origin` names the file in messages.
ModelConfig parse_model_config(const std::string& json, const std::string& origin);
ModelConfig read_model_config(const std::filesystem::path& folder);
// What decides, beside the weights, what a model computes: sizes, norms, rotary embedding, windows,
// biases. One line.
std::string describe_function(const ModelConfig& config);
// raw_json with the fields of `config` written over it, in the same style (transformers 4 or 5
// keys) it was read in.
std::string write_model_config(const ModelConfig& config);

}  // namespace retort::models
