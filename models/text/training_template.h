// The training variants of published chat templates: the same text with {% generation %} marks, and
// with what else TRL 1.16 changes for training (get_training_chat_template).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace retort::models {

struct TrainingTemplate {
  std::string name;    // of the published one, as TRL names it: "qwen3"
  std::string source;  // with marks
};

// The variant of a published template, which is known by its text (SHA-256, whatever its line
// ends); none for any other. What it renders, and which of it is marked, is what TRL's training
// template of the same name renders and marks.
std::optional<TrainingTemplate> training_template(std::string_view published);

}  // namespace retort::models
