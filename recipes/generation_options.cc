#include "recipes/generation_options.h"

#include <cmath>

#include "base/error.h"

namespace retort::recipes {
namespace {

void require(bool good, const std::string& message) {
  if (!good) throw Error(ErrorCode::kInvalidArgument, message);
}

}  // namespace

void GenerationOptions::validate() const {
  require(num_generations >= 1, "num_generations must be at least 1");
  require(max_new_tokens >= 1, "max_new_tokens must be at least 1");
  require(std::isfinite(temperature) && temperature >= 0, "temperature must be a finite number, 0 (greedy) or above");
  require(temperature > 0 || num_generations == 1,
          "num_generations above 1 with temperature: 0 would repeat one greedy completion; set a temperature");
  require(top_p > 0 && top_p <= 1, "top_p must be in (0, 1]");
  require(top_k >= 0, "top_k must be 0 (all) or above");
  require(min_p >= 0 && min_p < 1, "min_p must be in [0, 1)");
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty must be a finite number above 0");
  require(kv_cache.bytes >= (int64_t{1} << 20), "kv_cache must be at least 1MiB");
  require(max_tokens_per_step >= 16, "max_tokens_per_step must be at least 16");
  require(max_sequences >= 1, "max_sequences must be at least 1");
  for (const std::string& text : stop) require(!text.empty(), "stop must not hold an empty text");
}

bool GenerationOptions::whole_distribution() const { return top_p == 1 && top_k == 0 && min_p == 0 && repetition_penalty == 1; }

void WeightSyncOptions::validate() const {
  require(every_steps >= 1, "every_steps must be at least 1");
  require(bucket_bytes.bytes >= 4096, "bucket_bytes must be at least 4KiB");
}

}  // namespace retort::recipes
