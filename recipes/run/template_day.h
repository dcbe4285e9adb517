// The chat template as a recipe sets it: its variables, and the day that it prints.
#pragma once

#include <string>

#include "models/text/chat_template.h"
#include "recipes/recipe.h"

namespace retort::recipes {

// "2026-11-23", on this host.
std::string today();

// The student's template with data.chat_template_kwargs, which prints this day.
models::ChatTemplate load_chat(const Recipe& recipe, const std::string& day);
// The same for a command that is no run: data.template_date, else today.
models::ChatTemplate load_chat(const Recipe& recipe);

}  // namespace retort::recipes
