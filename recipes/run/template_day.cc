#include "recipes/run/template_day.h"

#include <ctime>

namespace retort::recipes {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[sizeof "2026-11-23"];
  const size_t size = std::strftime(text, sizeof text, "%Y-%m-%d", &local);
  return {text, size};
}

models::ChatTemplate load_chat(const Recipe& recipe, const std::string& day) {
  return models::ChatTemplate::load(recipe.student().model)
      .with({.variables_json = recipe.data.chat_template_kwargs.json, .day = day});
}

models::ChatTemplate load_chat(const Recipe& recipe) {
  return load_chat(recipe, recipe.data.template_date.value_or(today()));
}

}  // namespace retort::recipes
