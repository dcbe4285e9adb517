#include "recipes/rollout/drawn_length.h"

#include <string>

#include "models/config.h"

namespace retort::recipes {

void check_drawn_length(const Recipe& recipe, const RecipePlaces& places) {
  if (!recipe.generation) return;
  if (recipe.distill && recipe.distill->lmbda < 1) return;
  if (!recipe.roles.contains(recipe.generation->role)) return;
  const RoleOptions& generator = recipe.roles.at(recipe.generation->role);
  if (generator.external) return;

  const models::ModelConfig config = models::read_model_config(generator.model);
  const auto check = [&](const models::Rope& rope) {
    const int64_t limit = rope.fixed_length();
    if (limit == 0 || recipe.data.max_length <= limit) return;
    places.refuse({"data", "max_length"},
                  "a prompt with its completion may have " +
                      std::to_string(recipe.data.max_length) + " tokens, and above " +
                      std::to_string(limit) + " the rope type '" + rope.type + "' of " +
                      generator.model +
                      " rotates all of a sequence otherwise than the keys that are in the "
                      "generator's cache by then; write " +
                      std::to_string(limit) + " or less");
  };
  check(config.rope);
  if (config.sliding_rope) check(*config.sliding_rope);
}

}  // namespace retort::recipes
