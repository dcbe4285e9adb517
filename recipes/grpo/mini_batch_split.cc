#include "recipes/grpo/mini_batch_split.h"

#include "base/error.h"

namespace retort::recipes {

std::vector<std::vector<size_t>> mini_batch_split(int64_t num_prompts, const BatchSizes& sizes) {
  const auto generations = static_cast<size_t>(sizes.num_generations);
  const auto micro_batches = static_cast<size_t>(sizes.micro_batches);
  const auto rows = static_cast<size_t>(sizes.rows_per_micro_batch);

  std::vector<std::vector<size_t>> batches;
  for (int64_t mini_batch = 0; mini_batch < sizes.num_mini_batches; ++mini_batch) {
    // Mini-batches share the prompts of all ranks evenly, before these are dealt out.
    const int64_t begin = num_prompts * mini_batch / sizes.num_mini_batches;
    const int64_t end = num_prompts * (mini_batch + 1) / sizes.num_mini_batches;

    const size_t first = batches.size();
    batches.resize(first + micro_batches);
    size_t placed = 0;
    for (int64_t prompt = begin; prompt < end; ++prompt) {
      // Prompts are dealt round the ranks: prompt p of the round is number p / dp of its rank.
      if (prompt % sizes.dp_size != sizes.dp_rank) continue;
      const auto mine = static_cast<size_t>(prompt / sizes.dp_size);
      for (size_t g = 0; g < generations; ++g, ++placed) {
        RETORT_CHECK(placed < micro_batches * rows) << "more completions than micro-batches hold";
        batches[first + placed / rows].push_back(mine * generations + g);
      }
    }
  }
  return batches;
}

}  // namespace retort::recipes
