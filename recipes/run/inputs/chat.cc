#include "recipes/run/inputs/chat.h"

#include "base/error.h"
#include "base/today.h"

namespace retort::recipes {

std::optional<models::TemplateSource> own_template(const Recipe& recipe) {
  if (!recipe.data.chat_template) return std::nullopt;
  try {
    return models::find_template(*recipe.data.chat_template);
  } catch (const Error& error) {
    throw Error(error.code(), "data.chat_template: " + error.message());
  }
}

models::ChatTemplate load_chat(const Recipe& recipe, const std::string& day) {
  const std::string& folder = recipe.student().model;
  const std::optional<models::TemplateSource> own = own_template(recipe);
  const models::ChatTemplate chat =
      own ? models::ChatTemplate::load(folder, *own) : models::ChatTemplate::load(folder);
  return chat.with({.variables_json = recipe.data.chat_template_kwargs.json, .day = day});
}

models::ChatTemplate load_chat(const Recipe& recipe) {
  return load_chat(recipe, recipe.data.template_date.value_or(today()));
}

}  // namespace retort::recipes
