// What follows from `roles.student.lora`: what is pushed, what is kept, what an adapter belongs to.
#pragma once

#include <string>

#include "models/config/config.h"
#include "models/lora/lora_config.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// Whether generators are sent the student's adapter alone (roles.student.lora.push).
bool pushes_adapter(const Recipe& recipe);

// Whether a copy of the adapter that training starts from is kept for a reference.
bool keeps_first_adapter(const Recipe& recipe);

// With roles.student.lora.push: adapter, of the files of `role`, the student or its generator:
// models::weights_fingerprint, else "". Reads all of them.
std::string base_weights(const Recipe& recipe, const RoleOptions& role);

// The layers that are adapted, as a recipe writes them: "[q_proj, v_proj]", or a pattern.
std::string modules_text(const models::LoraConfig& config);

// "lora_alpha: 16 there, 32 in the recipe; ..." of settings that differ for adapters of `model`; ""
// if none does.
std::string lora_difference(const models::ModelConfig& model, const models::LoraConfig& there,
                            const models::LoraConfig& wanted);

}  // namespace retort::recipes
