// Which completions of a rank's rollout are trained on at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace retort::recipes {

struct BatchSizes {
  int64_t num_generations = 8;       // completions of each prompt
  int64_t num_mini_batches = 1;      // optimizer steps that share out a rollout
  int64_t micro_batches = 1;         // of a step on each rank
  int64_t rows_per_micro_batch = 8;  // completions
  int64_t dp_rank = 0, dp_size = 1;  // the prompt at place i of a rollout is on rank i mod dp_size
};

// Returns for each micro-batch of each mini-batch in turn its completions, by their places in this
// rank's part of a rollout of `num_prompts` prompts on all ranks. Mini-batches have the prompts in
// order, as many each (one more or less at the end of an epoch), the same ones whatever the layout;
// within a mini-batch completions follow one another. Always num_mini_batches * micro_batches, of
// which some may be empty. More completions than they hold are a bug of the caller's, whose process
// ends.
std::vector<std::vector<size_t>> mini_batch_split(int64_t num_prompts, const BatchSizes& sizes);

}  // namespace retort::recipes
