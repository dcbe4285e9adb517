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
                                       const models::Tokenizer& tokenizer) {
  GenerationOptions generation = *recipe.generation;
  std::vector<int64_t> end_ids = models::end_token_ids(student, tokenizer);
  stop_at_special_tokens(tokenizer, generation, end_ids);

  return {.generation = std::move(generation),
          .sync = *recipe.weight_sync,
          .seed = static_cast<uint64_t>(recipe.seed),
          .eos_token_ids = std::move(end_ids)};
}

models::DrawOptions draw_options(const RolloutWorker::Options& options, int64_t num_ids,
                                 bool greedy) {
  const GenerationOptions& generation = options.generation;
  models::SamplingOptions sampling = generation.sampling;
  if (greedy) sampling = {.temperature = 0, .repetition_penalty = sampling.repetition_penalty};
  sampling.num_ids = num_ids;
  sampling.seed = options.seed;

  return {.sampling = sampling,
          .max_new_tokens = generation.max_new_tokens,
          .eos_token_ids = options.eos_token_ids,
          .stop = generation.stop};
}

}  // namespace retort::recipes
