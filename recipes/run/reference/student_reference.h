// What the student was before it was trained, as a reference: no role of its own, no second model.
// With a new adapter that is the model without it; with roles.student.lora.adapter the adapter that
// training began with, a frozen copy of which is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "recipes/document/lora_options.h"
#include "recipes/run/reference/reference.h"
#include "roles/teacher/frozen_answers.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// Answers log-probabilities of targets by a forward pass with what never changes, the weights and
// the first state of the adapter: at once. The numbers are made as a teacher makes them.
// Collectives: send() runs Trainer::hidden_before_training and make_payload, so that every rank of
// a replica of the student calls with the same tokens; where the pipeline does not end the payload
// is empty. Threads: compute.
class StudentAnswers : public roles::FrozenAnswers {
 public:
  // `trainer` has an adapter and outlives this. The logits are divided by `temperature`; ids from
  // `num_ids` on are left out (0: none).
  StudentAnswers(roles::Trainer& trainer, double temperature, int64_t num_ids)
      : trainer_(trainer), temperature_(temperature), num_ids_(num_ids) {}

  roles::PendingPayload send(uint64_t request_id, int64_t step, const models::PackedTokens& tokens,
                             const at::Tensor& positions) override;
  roles::Payload receive(roles::PendingPayload pending, double* waited) override;
  const at::Tensor& head_weight() const override { return no_head_; }
  int64_t common_vocab() const override { return num_ids_; }

 private:
  roles::Trainer& trainer_;
  double temperature_;
  int64_t num_ids_;
  at::Tensor no_head_;  // hidden states are not asked for
};

// Makes of the student itself what make_reference and make_cached_reference make of a role. `lora`:
// the student's, whose adapter is read once more, on each rank its slices, if training starts from
// one.
// Errors: as models::attach_first_adapter.
std::unique_ptr<Reference> make_student_reference(roles::Trainer& trainer, const LoraOptions& lora,
                                                  double temperature = 1, int64_t num_ids = 0);

}  // namespace retort::recipes
