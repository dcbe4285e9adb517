#include "recipes/run/inputs/batch_options.h"

namespace retort::recipes {

data::BatchOptions batch_options(const Recipe& recipe, int64_t dp_rank) {
  const TrainOptions& train = recipe.train;
  return {.seed = static_cast<uint64_t>(recipe.seed),
          // unused with tokens_per_batch
          .rows_per_micro_batch = train.per_device_train_batch_size.value_or(1),
          .tokens_per_micro_batch = train.tokens_per_batch.value_or(0),
          .micro_batches = train.gradient_accumulation_steps,
          .rampup_steps = train.batch_size_rampup_steps,
          .max_length = recipe.data.max_length,
          .packing = recipe.data.packing,
          .shuffle = recipe.data.shuffle,
          .dp_rank = dp_rank,
          .dp_size = recipe.student().world.dp};
}

}  // namespace retort::recipes
