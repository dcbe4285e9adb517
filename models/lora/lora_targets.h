// Which linear layers of a model an adapter's target_modules name, as PEFT finds them: by the names
// that the layers have in transformers and in the model's files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "models/lora/lora_config.h"

namespace retort::models {

// A linear layer that one pair of factors adapts.
struct AdaptedModule {
  std::string name;  // "model.layers.0.self_attn.qkv_proj"
  int64_t layer = 0;
  // The decoder's matrices that are its rows, in their order: q_proj, k_proj and v_proj of a fused
  // qkv_proj, gate_proj and up_proj of a gate_up_proj; else the one of its own name.
  std::vector<std::string> parts;

  bool operator==(const AdaptedModule&) const = default;
};

// All that is adapted, in the order of the model's layers. kInvalidArgument naming target_modules
// if that is nothing, or what is wrong with a pattern.
std::vector<AdaptedModule> adapted_modules(const ModelConfig& config, const LoraConfig& lora);

// The first of the names in target_modules that no layer of the model has; nullopt: each has some.
std::optional<std::string> unmatched_target(const ModelConfig& config, const LoraConfig& lora);

// The parameters of the whole model that modules_to_save name, in its order: of the embedding, the
// head and the norms. kInvalidArgument naming modules_to_save for a linear layer, and for the
// embedding and the head of a model in which they are one: an adapter's files have no place for
// that.
std::vector<std::string> saved_parameters(const ModelConfig& config, const LoraConfig& lora);
// Does for modules_to_save what unmatched_target does for target_modules.
std::optional<std::string> unmatched_module(const ModelConfig& config, const LoraConfig& lora);

// The settings with target_modules as names that this model has, where they are all-linear: what
// other programs read without knowing the model.
LoraConfig with_named_targets(const ModelConfig& config, LoraConfig lora);

// True when two adapters of a model have the same factors and scaling.
bool same_adapters(const ModelConfig& config, const LoraConfig& a, const LoraConfig& b);

}  // namespace retort::models
