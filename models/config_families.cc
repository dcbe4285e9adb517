#include "models/config_families.h"

#include "base/error.h"

namespace retort::models {
namespace {

constexpr FamilyDefaults kFamilies[] = {
    {Family::kLlama, "llama", "LlamaForCausalLM", 0, 0, 2048, false, 10000.0, 1e-6, -1, -1, -1},
    {Family::kMistral, "mistral", "MistralForCausalLM", 8, 0, 131072, false, 10000.0, 1e-6, -1, -1,
     -1},
    {Family::kQwen2, "qwen2", "Qwen2ForCausalLM", 32, 0, 32768, false, 10000.0, 1e-6, -1, -1, -1},
    {Family::kQwen3, "qwen3", "Qwen3ForCausalLM", 32, 128, 32768, false, 10000.0, 1e-6, -1, -1, -1},
    {Family::kPhi3, "phi3", "Phi3ForCausalLM", 0, 0, 4096, false, 10000.0, 1e-5, 1, 32000, 32000},
    {Family::kGemma2, "gemma2", "Gemma2ForCausalLM", 4, 256, 8192, true, 10000.0, 1e-6, 2, 1, 0},
    {Family::kGemma3, "gemma3_text", "Gemma3ForCausalLM", 4, 256, 131072, true, 1e6, 1e-6, 2, 1, 0},
};

}  // namespace

const FamilyDefaults& family_defaults(Family family) {
  const FamilyDefaults& found = kFamilies[static_cast<size_t>(family)];
  RETORT_CHECK(found.family == family) << "the table of families is not in their order";
  return found;
}

const FamilyDefaults* find_family(const std::string& model_type) {
  for (const FamilyDefaults& defaults : kFamilies)
    if (model_type == defaults.model_type) return &defaults;
  return nullptr;
}

std::string known_model_types() {
  std::string list;
  for (const FamilyDefaults& defaults : kFamilies)
    list += (list.empty() ? "" : ", ") + std::string(defaults.model_type);
  return list;
}

void apply_family(ModelConfig& config) {
  const bool gemma = is_gemma(config.family);
  config.qk_norm = config.family == Family::kQwen3 || config.family == Family::kGemma3;
  config.activation = gemma ? Activation::kGeluTanh : Activation::kSilu;
  config.norm_unit_offset = gemma;
  config.output_norms = gemma;
  config.scaled_embedding = gemma;
  config.fused_projections = config.family == Family::kPhi3;
}

}  // namespace retort::models
