// Loss and accuracy of a model on held-out batches.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/batches.h"
#include "recipes/run/loop/objective.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

struct Evaluation {
  double loss = 0;      // mean cross-entropy per target token, nats
  double accuracy = 0;  // argmax equals target
  double entropy = 0;
  int64_t num_tokens = 0;  // target tokens
};

// Inference over every batch of this dp rank; sums are combined over dp and pp (one all-reduce).
// All ranks call.
Evaluation evaluate(const roles::Trainer& trainer, const std::vector<data::MicroBatch>& batches,
                    parallel::World& world);
MetricsRow evaluation_row(int64_t step, const Evaluation& evaluation);

}  // namespace retort::recipes
