// The loss of a step's micro-batches, and what the step tells of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/world.h"
#include "recipes/document/grpo_options.h"
#include "recipes/grpo/micro_batch.h"
#include "recipes/grpo/reference_questions.h"
#include "recipes/run/loop/objective.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// Forms the loss of one step after the other: begin_step, then loss_sum of each of its
// micro-batches. Threads: compute. Collectives: those of the losses on tp; with a reference those
// of Reference, once for each micro-batch of a round; in begin_step with entropy_coef an all-reduce
// over dp, with top_entropy_quantile a vote on the world and where the pipeline ends an all-reduce
// and an all-gather over dp, and those of student_rows.
class GrpoStepLoss {
 public:
  struct Options {
    GrpoOptions grpo;
    int64_t max_new_tokens = 256;  // of a completion
    double temperature = 1.0;      // at which they are drawn
    int64_t num_ids = 0;           // that they are drawn from (num_drawn_ids)
  };
  // `reference`: with beta, else null. All outlive it.
  GrpoStepLoss(parallel::World& world, const roles::Trainer& trainer, ReferenceQuestions* reference,
               Options options);

  // How many StepSums::values it needs.
  static size_t num_values();
  // `batches`: of the step, on this rank.
  void begin_step(std::span<GrpoMicroBatch> batches, parallel::Group& dp);
  // Keeps the log-probabilities of now in the batch, where later steps need them.
  at::Tensor loss_sum(const models::Head& head, const at::Tensor& hidden, GrpoMicroBatch& batch,
                      StepSums& sums);
  double divisor(const StepSums& sums) const;
  void add_metrics(const StepSums& sums, MetricsRow& row) const;

 private:
  void mark_high_entropy(std::span<GrpoMicroBatch> batches, parallel::Group& dp) const;

  parallel::World& world_;
  const roles::Trainer& trainer_;
  ReferenceQuestions* const reference_;
  const Options options_;
  double entropy_weight_ = 0;  // in the sum of the step's losses; with entropy_coef
};

}  // namespace retort::recipes
