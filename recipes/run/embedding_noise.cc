#include "recipes/run/embedding_noise.h"

#include <utility>

#include "base/random.h"

namespace retort::recipes {
namespace {

// Of the tokens, not of where they stand in the data, which may move before a run is resumed.
uint64_t noise_key(uint64_t seed, int64_t step, const data::Sample& sample) {
  constexpr uint64_t kNoise = 0x6e656674756e65;  // draws of other kinds have the same seed
  uint64_t key = random_bits(seed, kNoise, static_cast<uint64_t>(step), sample.input_ids.size());
  for (const int32_t id : sample.input_ids)
    key = random_bits(key, static_cast<uint64_t>(id));
  return key;
}

}  // namespace

StepSource with_embedding_noise(StepSource source, double alpha, uint64_t seed) {
  if (alpha == 0) return source;
  return [source = std::move(source), alpha, seed](int64_t step) {
    data::BatchStream::Step drawn = source(step);
    for (data::MicroBatch& batch : drawn.micro_batches) {
      batch.tokens.noise.alpha = alpha;
      for (const data::Sample& sample : batch.samples)
        batch.tokens.noise.keys.push_back(noise_key(seed, step, sample));
    }
    return drawn;
  };
}

}  // namespace retort::recipes
