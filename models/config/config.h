// What a Hugging Face config.json says of a decoder, in the style of transformers 4 and of
// transformers 5.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/config/activation.h"

namespace retort::models {

// Each has an entry in the table of models/config/families.cc.
enum class Family { kLlama, kMistral, kQwen2, kQwen3, kPhi3, kGemma2, kGemma3 };

// Rotary embedding: plain ("default") or with frequencies scaled for longer texts, as transformers
// 5 does. docs/models.md has the formulas.
struct Rope {
  std::string type = "default";  // default | linear | dynamic | llama3 | yarn | longrope
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  // dynamic: the model's max_position_embeddings
  int64_t original_max_position_embeddings = 8192;
  double partial_rotary_factor = 1.0;  // the part of each head, from its beginning, that rotates
  double attention_factor = 1.0;       // yarn, longrope: what cos and sin are multiplied by
  double beta_fast = 32.0;             // yarn: turns within the original context, ...
  double beta_slow = 1.0;  // ... above which a frequency stays, below which it is scaled
  bool truncate = true;    // yarn: to whole dimensions
  // longrope: divisors of the frequencies, one for each, of sequences up to
  // original_max_position_embeddings and of longer ones
  std::vector<double> short_factor;
  std::vector<double> long_factor;

  bool operator==(const Rope&) const = default;
  // The dimensions of a head that rotate; even where the config was parsed.
  int64_t rotary_dim(int64_t head_dim) const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  // Up to so many tokens the frequencies do not depend on the length of a sequence; 0: they never
  // do.
  int64_t fixed_length() const {
    return type == "dynamic" || type == "longrope" ? original_max_position_embeddings : 0;
  }
};

// A head of a few numbers for a sequence in the place of the vocabulary's: transformers'
// *ForSequenceClassification, as reward models are.
struct SequenceClassifier {
  int64_t num_labels = 0;  // 0: the model is a language model
  // A sequence's numbers are those at its last token that is not this; -1: at its last.
  int64_t pad_token_id = -1;
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
  std::optional<Rope> sliding_rope;  // Gemma 3: of the layers with a window; else they have `rope`
  bool tie_word_embeddings = false;
  bool attention_bias = false;      // q, k, v biases
  bool attention_out_bias = false;  // o_proj bias (Llama's attention_bias sets both)
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3, Gemma 3: RMSNorm over head_dim on q and k
  Activation activation = Activation::kSilu;
  double query_pre_attn_scalar = 0;  // scores are divided by its root; 0: head_dim
  // c > 0: what would be x is c tanh(x / c), scores before they are masked, and logits.
  double attn_logit_softcapping = 0;
  double final_logit_softcapping = 0;
  bool norm_unit_offset = false;  // Gemma: norms multiply by 1 + weight
  bool output_norms = false;      // Gemma: what attention and MLP give is normed, too
  bool scaled_embedding = false;  // Gemma: embeddings are multiplied by sqrt(hidden_size)
  bool fused_projections =
      false;  // Phi-3: q, k, v are one tensor of the files, gate and up another
  // per layer; 0 = full attention; token i sees j with j > i - window
  std::vector<int64_t> sliding_window;
  std::string torch_dtype = "float32";  // of the file: float32 | bfloat16 | float16
  int64_t bos_token_id = -1;
  int64_t pad_token_id = -1;
  // of generation_config.json where the folder has one that names them
  std::vector<int64_t> eos_token_ids;
  SequenceClassifier classifier;
  // the whole config.json as read, so that unknown keys are written back
  std::string raw_json;
  std::vector<std::string> unknown_keys;  // kept, written back, listed once by the loader

  bool classifies() const { return classifier.num_labels > 0; }
  int64_t num_parameters() const;  // of models/parameters/parameter_specs.h
  // What products of queries and keys are multiplied by.
  double score_scale() const {
    const auto width = static_cast<double>(head_dim);
    return 1.0 / std::sqrt(query_pre_attn_scalar > 0 ? query_pre_attn_scalar : width);
  }
};

// Sets what is the same in every model of the family: qk_norm, activation, norms, embedding, fused
// projections (models/config/families.h).
void apply_family(ModelConfig& config);

// Parses and validates. kInvalidArgument naming the key for an unsupported model_type or a value
// that changes the function and is not implemented (hidden_act, rope type, pretraining_tp,
// quantization_config, ...). `origin` names the file in messages.
ModelConfig parse_model_config(const std::string& json, const std::string& origin);
ModelConfig read_model_config(const std::filesystem::path& folder);
// What decides, beside the weights, what a model computes: sizes, norms, rotary embedding, windows,
// biases. One line.
std::string describe_function(const ModelConfig& config);
// The same model with a head of `num_labels` numbers in the place of its own; `pad_token_id` as in
// SequenceClassifier.
ModelConfig as_classifier(ModelConfig config, int64_t num_labels, int64_t pad_token_id);
// raw_json with the fields of `config` written over it, in the same style (transformers 4 or 5
// keys) it was read in.
std::string write_model_config(const ModelConfig& config);

}  // namespace retort::models
