// The chat template as a recipe sets it: its text, its variables, and the day that it prints.
#pragma once

#include <optional>
#include <string>

#include "models/text/chat_template.h"
#include "models/text/named_templates.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// The text that a recipe puts in place of the templates of the student's folder; none: they stay.
// kInvalidArgument for a data.chat_template that is neither a file nor a name.
std::optional<models::TemplateSource> own_template(const Recipe& recipe);

// The student's template, or the recipe's in its place, with data.chat_template_kwargs, which
// prints this day.
models::ChatTemplate load_chat(const Recipe& recipe, const std::string& day);
// The same for a command that is no run: data.template_date, else today.
models::ChatTemplate load_chat(const Recipe& recipe);

}  // namespace retort::recipes
