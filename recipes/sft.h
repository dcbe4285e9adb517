// Supervised fine-tuning: token cross-entropy on the target tokens, never materialising all logits.
#pragma once

#include "recipes/objective.h"

namespace retort::recipes {

class SftObjective : public Objective {
 public:
  at::Tensor loss_sum(const models::Decoder& student, const data::MicroBatch& batch, size_t index, StepSums& sums) override;
};

}  // namespace retort::recipes
