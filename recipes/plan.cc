#include "recipes/plan.h"

namespace retort::recipes {

int64_t micro_batch_tokens(const Recipe& recipe, int64_t sequences_per_row) {
  if (recipe.train.tokens_per_batch) return *recipe.train.tokens_per_batch;
  const int64_t rows = recipe.train.per_device_train_batch_size.value_or(0);
  return rows * sequences_per_row * recipe.data.max_length;
}

double tokens_per_step(const Recipe& recipe, int64_t sequences_per_row) {
  return static_cast<double>(micro_batch_tokens(recipe, sequences_per_row) *
                             recipe.train.gradient_accumulation_steps * recipe.student().world.dp);
}

}  // namespace retort::recipes
