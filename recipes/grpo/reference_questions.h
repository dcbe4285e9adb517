// What the reference is asked about a round: its micro-batches, each once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "recipes/data/batches.h"
#include "recipes/grpo/mini_batch_split.h"
#include "recipes/rollout/rollout_scorer.h"
#include "recipes/run/reference/reference.h"

namespace retort::recipes {

// A micro-batch can be asked for as soon as its samples are scored, while others of the round are
// drawn. Threads: compute. Collectives: those of Reference.
class ReferenceQuestions {
 public:
  struct Options {
    BatchSizes sizes;
    bool mask_truncated = false;  // GrpoOptions::mask_truncated_completions
  };
  ReferenceQuestions(std::unique_ptr<Reference> reference, Options options);

  // Forgets what was asked of the round before. `step`: the round's first; `num_prompts`: of all
  // ranks.
  void begin_round(int64_t step, int64_t num_prompts);
  // Asks for the next micro-batches of the round's `request`, in their order, as far as `scorer`
  // has scored their samples. On the rank that scores, if that is also the one that asks; nothing
  // where all ranks ask.
  void ask_early(const RolloutRequest& request, RolloutScorer& scorer);
  // Asks for a micro-batch of the round unless ask_early() asked for the very same.
  Reference::Pending ask(size_t index, const data::MicroBatch& batch);
  // Reference::token_log_probs.
  at::Tensor token_log_probs(Reference::Pending& pending, int64_t num_rows) {
    return reference_->token_log_probs(pending, num_rows);
  }

 private:
  struct Early {
    at::Tensor input_ids, positions;  // undefined: no sample of it can be scored
    Reference::Pending answer;
  };
  uint64_t id(size_t index) const;

  std::unique_ptr<Reference> reference_;
  Options options_;
  int64_t step_ = 0;
  int64_t num_prompts_ = 0;
  std::vector<Early> early_;  // of the first micro-batches
};

}  // namespace retort::recipes
