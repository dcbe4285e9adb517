// What the student's model folder becomes: a language model, or one that scores sequences.
#pragma once

#include <optional>
#include <string>

#include "models/checkpoint/checkpoint.h"
#include "models/config/config.h"
#include "models/lora/lora_config.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// How the student's model is opened as a sequence classifier; nullopt: it is a language model.
std::optional<models::ClassifierOptions> student_classifier(const Recipe& recipe);

// What load_classifier takes to give the language model of a folder a new head of so many scores.
models::ClassifierOptions classifier_options(const std::string& folder, int64_t labels,
                                             uint64_t seed);

// The adapter of a student that has one: roles.student.lora, and of a model that scores its head
// too, as PEFT adds it for sequence classification.
models::LoraConfig student_adapter(const Recipe& recipe);

// The config of a role's model as the role has it: a student that learns to score has another head
// than its folder.
models::ModelConfig role_config(const Recipe& recipe, const std::string& role);

}  // namespace retort::recipes
