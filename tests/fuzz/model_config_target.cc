// Decodes: a model's config.json as it is downloaded (models/config/config.h).
// Holds: a config that is taken has sizes that the decoder can divide by, and the JSON that is
//   written of it is taken again.
#include "models/config/config.h"

#include "tests/fuzz/target_list.h"

namespace retort::fuzz::model_config {
namespace {

using namespace models;

bool decode(std::string_view bytes) {
  const ModelConfig config = parse_model_config(std::string(bytes), "config.json");
  expect(config.vocab_size > 0 && config.hidden_size > 0 && config.num_attention_heads > 0 &&
             config.num_key_value_heads > 0 && config.head_dim > 0,
         "a size is not positive");
  expect(config.num_attention_heads % config.num_key_value_heads == 0, "heads do not divide");
  const ModelConfig again = parse_model_config(write_model_config(config), "config.json");
  expect(describe_function(again) == describe_function(config), "written again it is another");
  return true;
}

std::vector<Seed> seeds() {
  return {
      {"llama",
       R"({"model_type": "llama", "vocab_size": 99, "hidden_size": 16, "intermediate_size": 32,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
"max_position_embeddings": 64, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "torch_dtype": "float32", "eos_token_id": [1, 2]})"},
      {"qwen3",
       R"({"model_type": "qwen3", "vocab_size": 99, "hidden_size": 16, "intermediate_size": 32,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
"rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 1e6, "hidden_act": "silu",
"use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1, "eos_token_id": 3})"},
      {"phi3",
       R"({"model_type": "phi3", "vocab_size": 99, "hidden_size": 32, "intermediate_size": 32,
"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
"partial_rotary_factor": 0.5, "original_max_position_embeddings": 16, "rope_scaling": {"type":
"longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}})"},
      {"gemma3",
       R"({"model_type": "gemma3_text", "vocab_size": 99, "hidden_size": 32,
"intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 9, "sliding_window": 16,
"final_logit_softcapping": null, "rope_parameters": {"full_attention": {"rope_type": "yarn",
"factor": 4.0, "mscale": 1.5, "mscale_all_dim": 0.5, "truncate": false}, "sliding_attention":
{"rope_type": "dynamic", "factor": 2.0}}})"},
      {"classifier",
       R"({"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"],
"vocab_size": 99, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
"num_attention_heads": 4, "num_key_value_heads": 4, "id2label": {"0": "LABEL_0"},
"label2id": {"LABEL_0": 0}, "tie_word_embeddings": true, "pad_token_id": 7})"},
  };
}

}  // namespace

Target target() { return {"model_config", decode, seeds}; }

}  // namespace retort::fuzz::model_config
