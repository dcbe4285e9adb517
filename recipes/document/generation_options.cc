#include "recipes/document/generation_options.h"

#include <cmath>

#include "base/error.h"
#include "models/generation/engine.h"

namespace retort::recipes {
namespace {

void require(bool good, const std::string& message) {
  if (!good) throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

void GenerationOptions::validate() const {
  require(num_generations >= 1, "num_generations must be at least 1");
  require(max_new_tokens >= 1, "max_new_tokens must be at least 1");
  require(min_new_tokens >= 0, "min_new_tokens must be at least 0");
  require(min_new_tokens < max_new_tokens,
          "min_new_tokens must be below max_new_tokens, at which every completion is cut off");
  sampling.validate();
  require(sampling.temperature > 0 || num_generations == 1,
          "num_generations above 1 with temperature: 0 would repeat one greedy completion; set a "
          "temperature");
  require(kv_cache.bytes >= (int64_t{1} << 20), "kv_cache must be at least 1MiB");
  engine().validate();
  require(eval_num_generations >= 1, "eval_num_generations must be at least 1");
  require(sampling.temperature > 0 || eval_num_generations == 1,
          "eval_num_generations above 1 with temperature: 0 would repeat one greedy completion");
  require(std::isfinite(eval_pass_reward), "eval_pass_reward must be finite");
  require(eval_num_generations > 1 || eval_pass_reward == GenerationOptions().eval_pass_reward,
          "eval_pass_reward has no effect with eval_num_generations: 1");
  for (const std::string& text : stop)
    require(!text.empty(), "stop must not hold an empty text");
}

bool GenerationOptions::whole_distribution() const {
  return sampling.is_whole() && min_new_tokens == 0;
}

models::EngineOptions GenerationOptions::engine() const {
  return {.kv_cache_bytes = static_cast<int64_t>(kv_cache.bytes),
          .max_tokens_per_step = max_tokens_per_step,
          .max_sequences = max_sequences};
}

void WeightSyncOptions::validate() const {
  require(every_steps >= 1, "every_steps must be at least 1");
  require(bucket_bytes.bytes >= 4096, "bucket_bytes must be at least 4KiB");
}

}  // namespace retort::recipes
