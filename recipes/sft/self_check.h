// The first row of packed samples through the student, and its cross-entropy against fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/losses/cross_entropy_type.h"
#include "recipes/type/self_check.h"

namespace retort::recipes {

// The final hidden states [R, H] of one model at the first target positions of a batch, and its
// head [V, H], in fp32 without autograd.
struct CheckedRows {
  at::Tensor hidden, weight;
  double softcap = 0;  // models::Head::softcap
};
CheckedRows rows_of(const models::Decoder& decoder, const data::MicroBatch& batch);

// A batch of the run's first row. Checks that it has targets.
data::MicroBatch first_batch(const Recipe& recipe, SelfCheck& check, data::SampleRule rule = {});

// The self-check of recipes whose loss is the cross-entropy of packed samples.
void check_first_cross_entropy(const Recipe& recipe, SelfCheck& check,
                               losses::CrossEntropyType type = losses::CrossEntropyType::kNll);

// Checks the loss of `rows` at `targets` [R] against fp64.
void check_cross_entropy(SelfCheck& check, const CheckedRows& rows, const at::Tensor& targets,
                         losses::CrossEntropyType type = losses::CrossEntropyType::kNll);

}  // namespace retort::recipes
