// Linear head + divergence from a teacher (+ cross-entropy mix), chunk by chunk, each chunk's gradient formed in the forward
// pass. For TeacherHidden neither [R, V] matrix ever exists whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "recipes/losses/divergence.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses {

struct DistillResult {
  at::Tensor loss_sum;            // scalar float32 with autograd: sum over rows of (1-kd_ratio)*CE + kd_ratio*KD
  int64_t count = 0;              // R
  double kd_sum = 0, ce_sum = 0;  // of the same rows, unweighted (ce_sum is always computed)
  double teacher_mass_sum = 0;    // sum over rows of the teacher's mass on its K ids (hidden, full: R)
  double student_mass_sum = 0;    // student's mass on the same ids
  double masked_mass_sum = 0;     // hidden: the teacher's mass on ids >= common_vocab before masking
  double entropy_sum = 0;         // of the student at temperature 1
  int64_t num_correct = 0;
};

// hidden [R, H], weight [V, H], bias [V] or undefined, targets [R] int64; signal rows match hidden rows one to one.
// kInvalidArgument / kMismatch when shapes, ids or vocabularies cannot belong together. Collectives: none.
// Memory as linear_cross_entropy, plus chunk*Vt*4 for TeacherHidden.
DistillResult linear_distill(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& targets, const TeacherSignal& signal, const DivergenceOptions& options);

}  // namespace retort::losses
