#include "recipes/rollout/draw_options.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/end_tokens.h"

namespace retort::recipes {
namespace {

void stop_at_special_tokens(const models::Tokenizer& tokenizer, GenerationOptions& generation,
                            std::vector<int64_t>& end_ids) {
  std::erase_if(generation.stop, [&](const std::string& text) {
    const int32_t id = tokenizer.token_to_id(text);
    const bool special = id >= 0 && tokenizer.decode(std::vector{id}, true).empty();
    if (special && std::find(end_ids.begin(), end_ids.end(), id) == end_ids.end())
      end_ids.push_back(id);
    return special;
  });
}

}  // namespace

RolloutWorker::Options rollout_options(const Recipe& recipe, const models::ModelConfig& student,
                                       const models::Tokenizer& tokenizer,
                                       const std::filesystem::path& run_folder) {
  GenerationOptions generation = *recipe.generation;
  // One completion for each prompt of a batch, where prompts come from batches.
  if (recipe.distill) generation.num_generations = 1;
  std::vector<int64_t> end_ids = models::end_token_ids(student, tokenizer);
  stop_at_special_tokens(tokenizer, generation, end_ids);

  return {.generation = std::move(generation),
          .sync = *recipe.weight_sync,
          .seed = static_cast<uint64_t>(recipe.seed),
          .eos_token_ids = std::move(end_ids),
          .run_folder = run_folder};
}

roles::DrawOptions draw_options(const RolloutWorker::Options& options, int64_t num_ids,
                                bool greedy) {
  const GenerationOptions& generation = options.generation;
  return {.max_new_tokens = generation.max_new_tokens,
          .temperature = greedy ? 0.0 : generation.temperature,
          .top_p = greedy ? 1.0 : generation.top_p,
          .min_p = greedy ? 0.0 : generation.min_p,
          .repetition_penalty = generation.repetition_penalty,
          .top_k = greedy ? 0 : generation.top_k,
          .num_ids = num_ids,
          .seed = options.seed,
          .eos_token_ids = options.eos_token_ids,
          .stop = generation.stop};
}

}  // namespace retort::recipes
