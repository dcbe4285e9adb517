// Draws other prompts in the place of those whose completions all score alike (DAPO's dynamic
// sampling, bounded).
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/rollout/rollout_scorer.h"
#include "recipes/rollout/sample_source.h"

namespace retort::recipes {

// Threads: compute. Collectives: those of SampleSource and RolloutScorer, and a vote on the world.
class Resampler {
 public:
  struct Options {
    int64_t num_generations = 8;
    int64_t max_new_tokens = 256;
    int64_t overlong_penalty_tokens = 0;
  };
  // All of them outlive this.
  Resampler(parallel::World& world, const data::PromptDataset& prompts, data::IndexStream& stream,
            SampleSource& samples, RolloutScorer& scorer, const Options& options)
      : world_(world),
        prompts_(prompts),
        stream_(stream),
        samples_(samples),
        scorer_(scorer),
        options_(options) {}

  struct Drawn {
    int64_t num_prompts = 0;  // of all ranks
    data::Cursor after;       // of the stream
  };
  // Puts the next prompts of the stream, with completions of the weights pushed last, in the place
  // of those at `places` of the round; the last ones stay where the stream comes to the end of an
  // epoch. Adds to the rollout's times. Every rank calls it with the same places.
  Drawn draw(Rollout& rollout, const std::vector<int64_t>& places, int64_t step);

 private:
  parallel::World& world_;
  const data::PromptDataset& prompts_;
  data::IndexStream& stream_;
  SampleSource& samples_;
  RolloutScorer& scorer_;
  Options options_;
  uint64_t requests_ = 0;
};

}  // namespace retort::recipes
