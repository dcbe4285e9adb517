#include "models/config_keys.h"

namespace retort::models {

const std::set<std::string>& known_keys() {
  static const std::set<std::string> keys{"model_type",
                                          "architectures",
                                          "transformers_version",
                                          "_name_or_path",
                                          "use_cache",
                                          "vocab_size",
                                          "hidden_size",
                                          "intermediate_size",
                                          "num_hidden_layers",
                                          "num_attention_heads",
                                          "num_key_value_heads",
                                          "head_dim",
                                          "hidden_act",
                                          "max_position_embeddings",
                                          "initializer_range",
                                          "rms_norm_eps",
                                          "rope_theta",
                                          "rope_scaling",
                                          "rope_parameters",
                                          "tie_word_embeddings",
                                          "attention_bias",
                                          "mlp_bias",
                                          "attention_dropout",
                                          "sliding_window",
                                          "use_sliding_window",
                                          "max_window_layers",
                                          "layer_types",
                                          "torch_dtype",
                                          "dtype",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "pretraining_tp",
                                          "quantization_config",
                                          "partial_rotary_factor",
                                          "is_encoder_decoder",
                                          "return_dict"};
  return keys;
}

}  // namespace retort::models
