#include "models/config/families.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "base/error.h"

namespace retort::models {
namespace {

constexpr FamilyTraits kFamilies[] = {
    {.family = Family::kLlama,
     .name = "Llama",
     .model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .gguf_architecture = "llama",
     .max_position_embeddings = 2048,
     .biases = BiasKeys::kAttentionMlp},

    {.family = Family::kMistral,
     .name = "Mistral",
     .model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .gguf_architecture = "llama",
     .num_key_value_heads = 8,
     .max_position_embeddings = 131072,
     .windows = WindowKeys::kOneForAll},

    {.family = Family::kQwen2,
     .name = "Qwen2",
     .model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .gguf_architecture = "qwen2",
     .num_key_value_heads = 32,
     .max_position_embeddings = 32768,
     .biases = BiasKeys::kQkvAlways,
     .windows = WindowKeys::kSwitchedOn},

    {.family = Family::kQwen3,
     .name = "Qwen3",
     .model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .gguf_architecture = "qwen3",
     .num_key_value_heads = 32,
     .head_dim = 128,
     .max_position_embeddings = 32768,
     .qk_norm = true,
     .biases = BiasKeys::kAttention,
     .windows = WindowKeys::kSwitchedOn},

    {.family = Family::kPhi3,
     .name = "Phi-3",
     .model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .max_position_embeddings = 4096,
     .rms_norm_eps = 1e-5,
     .bos_token_id = 1,
     .eos_token_id = 32000,
     .pad_token_id = 32000,
     .fused_projections = true,
     .biases = BiasKeys::kRefused,
     .partial_rotation = true,
     .only_longrope = true,
     .windows = WindowKeys::kOneForAll,
     .sliding_window = 0},

    {.family = Family::kGemma2,
     .name = "Gemma 2",
     .model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .num_key_value_heads = 4,
     .head_dim = 256,
     .max_position_embeddings = 8192,
     .tie_word_embeddings = true,
     .bos_token_id = 2,
     .eos_token_id = 1,
     .pad_token_id = 0,
     .activation = Activation::kGeluTanh,
     .activation_key = "hidden_activation",
     .norm_unit_offset = true,
     .output_norms = true,
     .scaled_embedding = true,
     .biases = BiasKeys::kAttention,
     .query_pre_attn_scalar = 256.0,
     .attn_logit_softcapping = 50.0,
     .final_logit_softcapping = 30.0,
     .windows = WindowKeys::kAlternating,
     .full_attention_every = 2},

    // transformers reads its attn_logit_softcapping, and does not use it.
    {.family = Family::kGemma3,
     .name = "Gemma 3",
     .model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .num_key_value_heads = 4,
     .head_dim = 256,
     .max_position_embeddings = 131072,
     .tie_word_embeddings = true,
     .bos_token_id = 2,
     .eos_token_id = 1,
     .pad_token_id = 0,
     .qk_norm = true,
     .activation = Activation::kGeluTanh,
     .activation_key = "hidden_activation",
     .norm_unit_offset = true,
     .output_norms = true,
     .scaled_embedding = true,
     .biases = BiasKeys::kAttention,
     .query_pre_attn_scalar = 256.0,
     .final_logit_softcapping = 0.0,
     .rope_theta = 1e6,
     .sliding_rope_theta = 10000.0,
     .windows = WindowKeys::kPatternNamed,
     .full_attention_every = 6},
};

}  // namespace

const FamilyTraits& family_traits(Family family) {
  const auto* found = std::ranges::find(kFamilies, family, &FamilyTraits::family);
  RETORT_CHECK(found != std::end(kFamilies)) << "a family without an entry in the table";
  return *found;
}

const FamilyTraits* find_family(const std::string& model_type) {
  for (const FamilyTraits& traits : kFamilies)
    if (model_type == traits.model_type) return &traits;
  return nullptr;
}

std::string known_model_types() {
  std::string list;
  for (const FamilyTraits& traits : kFamilies)
    list += (list.empty() ? "" : ", ") + std::string(traits.model_type);
  return list;
}

std::string exported_families() {
  std::vector<std::string> names;
  for (const FamilyTraits& traits : kFamilies)
    if (traits.gguf_architecture != nullptr) names.emplace_back(traits.name);
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    const char* before = i + 1 == names.size() ? " and " : ", ";
    list += (list.empty() ? "" : before) + names[i];
  }
  return list;
}

void apply_family(ModelConfig& config) {
  const FamilyTraits& traits = family_traits(config.family);
  config.qk_norm = traits.qk_norm;
  config.activation = traits.activation;
  config.norm_unit_offset = traits.norm_unit_offset;
  config.output_norms = traits.output_norms;
  config.scaled_embedding = traits.scaled_embedding;
  config.fused_projections = traits.fused_projections;
}

}  // namespace retort::models
