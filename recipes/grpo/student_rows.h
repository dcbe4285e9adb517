// What the student says of samples before it is trained on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "recipes/grpo/micro_batch.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

struct StudentRows {
  at::Tensor log_probs;  // [R] float32 in host memory, of the batch's targets
  at::Tensor entropy;    // [R] float32 in host memory, nats, of the distributions before them
};

// Computes both by one forward pass outside autograd, of the distribution that `num_ids` ids at
// `temperature` are drawn from: the same numbers as those that the loss of this batch begins with
// at these weights. Both are undefined where the pipeline does not end, unless the batch is empty.
// Collectives: those of Trainer::hidden, then of the losses on tp where the pipeline ends; none for
// an empty batch. Every rank of a replica calls with the same batch. Threads: compute.
StudentRows student_rows(const roles::Trainer& trainer, const GrpoMicroBatch& batch,
                         double temperature, int64_t num_ids);

}  // namespace retort::recipes
