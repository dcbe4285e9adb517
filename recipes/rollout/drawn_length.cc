#include "recipes/rollout/drawn_length.h"

#include <string>

#include "models/config.h"

namespace retort::recipes {

void check_drawn_length(const Recipe& recipe, const RecipePlaces& places) {
  if (!recipe.generation) return;
  if (recipe.distill && recipe.distill->lmbda == 0) return;
  if (!recipe.roles.contains(recipe.generation->role)) return;
  const RoleOptions& generator = recipe.roles.at(recipe.generation->role);
  if (generator.external) return;

  const models::ModelConfig config = models::read_model_config(generator.model);
  const int64_t new_tokens = recipe.generation->max_new_tokens;
  const auto check = [&](const models::Rope& rope) {
    const int64_t limit = rope.fixed_length();
    if (limit == 0 || new_tokens < limit) return;
    places.refuse({"generation", "max_new_tokens"},
                  "a completion of " + std::to_string(new_tokens) +
                      " tokens has no prompt before it, and above " +
                      std::to_string(limit) + " the rope type '" + rope.type + "' of " +
                      generator.model +
                      " rotates all of a sequence otherwise than the keys that are in the "
                      "generator's cache by then; write " +
                      std::to_string(limit - 1) +
                      " or less, and as much less as the longest prompt has tokens");
  };
  check(config.rope);
  if (config.sliding_rope) check(*config.sliding_rope);
}

}  // namespace retort::recipes
