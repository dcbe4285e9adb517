#include "recipes/rollout/draw_options.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "models/text/end_tokens.h"

namespace retort::recipes {

models::StopRule stop_rule_of(const GenerationOptions& generation,
                              const models::Tokenizer& tokenizer) {
  try {
    return models::stop_rule(tokenizer, generation.stop, generation.min_new_tokens);
  } catch (const Error& error) {
    throw Error(error.code(), "generation.stop: " + error.message());
  }
}

RolloutWorker::Options rollout_options(const Recipe& recipe, const models::ModelConfig& student,
                                       const models::Tokenizer& tokenizer) {
  // Every rank of the student sends to a generator, so its windows are small. A bucket that is
  // larger than a window travels alone; smaller ones travel side by side.
  WeightSyncOptions sync = *recipe.weight_sync;
  const uint64_t window = recipe.rpc.window_bytes(recipe.student().world.world_size());
  sync.bucket_bytes.bytes = std::min(sync.bucket_bytes.bytes, window);

  return {.generation = *recipe.generation,
          .sync = sync,
          .seed = static_cast<uint64_t>(recipe.seed),
          .eos_token_ids = models::end_token_ids(student, tokenizer),
          .stops = stop_rule_of(*recipe.generation, tokenizer),
          .episodes = recipe.environment.has_value()};
}

models::DrawOptions draw_options(const RolloutWorker::Options& options, int64_t num_ids,
                                 bool greedy) {
  const GenerationOptions& generation = options.generation;
  models::SamplingOptions sampling = generation.sampling;
  if (greedy)
    sampling = {.temperature = 0,
                .repetition_penalty = sampling.repetition_penalty,
                .presence_penalty = sampling.presence_penalty,
                .frequency_penalty = sampling.frequency_penalty};
  sampling.num_ids = num_ids;
  sampling.seed = options.seed;

  return {.sampling = sampling,
          .max_new_tokens = generation.max_new_tokens,
          .min_new_tokens = generation.min_new_tokens,
          .eos_token_ids = options.eos_token_ids,
          .stop = options.stops.texts,
          .stop_token_ids = options.stops.token_ids};
}

}  // namespace retort::recipes
