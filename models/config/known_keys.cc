#include "models/config/known_keys.h"

#include <iterator>

namespace retort::models {
namespace {

constexpr const char* kKnownKeys[] = {
    // Which model and which software.
    "model_type", "architectures", "transformers_version", "_name_or_path", "use_cache",
    "return_dict",
    // Sizes.
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
    // Layers.
    "hidden_act", "initializer_range", "rms_norm_eps", "tie_word_embeddings", "attention_bias",
    "mlp_bias", "attention_dropout", "hidden_activation", "query_pre_attn_scalar",
    "attn_logit_softcapping", "final_logit_softcapping",
    // Positions and windows.
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "original_max_position_embeddings",
    "rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern",
    // The file's dtype and its token ids.
    "torch_dtype", "dtype", "bos_token_id", "eos_token_id", "pad_token_id",
    // Labels of a classifier.
    "num_labels", "id2label", "label2id", "problem_type",
    // Accepted at the value that changes nothing.
    "pretraining_tp", "quantization_config", "is_encoder_decoder", "resid_pdrop", "embd_pdrop",
    "use_bidirectional_attention"};

}  // namespace

const std::set<std::string>& known_keys() {
  static const std::set<std::string> keys(std::begin(kKnownKeys), std::end(kKnownKeys));
  return keys;
}

}  // namespace retort::models
