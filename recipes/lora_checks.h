// What a recipe says of `roles.student.lora`, checked.
#pragma once

#include <string>

#include "models/config.h"
#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// Roles that do not train have no adapter. An adapter alone is pushed to a generator of ours that
// has the student's model.
void check_lora(const Recipe& recipe, const RecipePlaces& places);
// The model has the matrices that are adapted, and the folder of the adapter that training starts
// from is there, with the recipe's settings.
void check_lora_files(const Recipe& recipe, const RecipePlaces& places);

// Whether generators are sent the student's adapter alone (roles.student.lora.push).
bool pushes_adapter(const Recipe& recipe);

// Whether a copy of the adapter that training starts from is kept for a reference.
bool keeps_first_adapter(const Recipe& recipe);

// With roles.student.lora.push: adapter, of the files of `role`, the student or its generator:
// models::weights_fingerprint, else "". Reads all of them.
std::string base_weights(const Recipe& recipe, const RoleOptions& role);

// "lora_alpha: 16 there, 32 in the recipe; ..." of settings that differ for adapters of `model`; ""
// if none does.
std::string lora_difference(const models::ModelConfig& model, const models::LoraConfig& there,
                            const models::LoraConfig& wanted);

}  // namespace retort::recipes
