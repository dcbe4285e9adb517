// Linear head + divergence from a teacher (+ cross-entropy mix), chunk by chunk, each chunk's
// gradient formed in the forward pass. For TeacherHidden neither [R, V] matrix ever exists whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallel/vocab_shard.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses {

struct DistillResult {
  // scalar float32 with autograd: sum over rows of (1-kd_ratio)*CE + kd_ratio*KD
  at::Tensor loss_sum;
  int64_t count = 0;              // R
  double kd_sum = 0, ce_sum = 0;  // of the same rows, unweighted (ce_sum is always computed)
  // sum over rows of the teacher's mass on its K ids (hidden, full: R)
  double teacher_mass_sum = 0;
  double student_mass_sum = 0;  // student's mass on the same ids
  // hidden: the teacher's mass on ids >= common_vocab before masking
  double masked_mass_sum = 0;
  double entropy_sum = 0;  // of the student at temperature 1
  int64_t num_correct = 0;
};

// hidden [R, H], weight [V, H], bias [V] or undefined, targets [R] int64; signal rows match hidden
// rows one to one. kInvalidArgument / kMismatch when shapes, ids or vocabularies cannot belong
// together; kCorrupt with the row when the teacher's numbers are no distribution. Memory as
// linear_cross_entropy, plus chunk*Vt*4 for TeacherHidden.
//
// Of a split vocabulary weight and bias are this rank's rows, ids [begin, end) with end = begin +
// rows, and the teacher's side is cut at the same ids whatever its own size:
// - TeacherHidden: `weight` and `bias` are the teacher's rows [begin, min(end, Vt)); the last rank
//     that holds any student row has
//   [begin, Vt) instead, so every teacher row above the student's vocabulary too; a rank without
//   student rows has none. So of its teacher rows row i is the id begin + i; those below
//   common_vocab stand beside the student's row i, those from common_vocab on are masked and only
//   add to masked_mass_sum. `hidden` is whole on every rank.
// - TeacherFull: `logps` are the columns [begin, min(end, C)) of C common ids ([R, 0] above them),
//     their total mass still 1.
// - TeacherTopK: whole on every rank, ids of the whole vocabulary.
// hidden, targets and options are the same on every rank, and so is the result; dH is what these
// rows contribute (the sum over the ranks is the whole), dW theirs alone. Collectives, all in the
// forward pass, every rank must call: none for a whole vocabulary; else a vote on the arguments,
// one all-gather of 8 bytes for TeacherHidden, then two all-reduces a chunk (three for
// TeacherHidden and TeacherFull with jsd, skewed and tvd). What one rank finds wrong is thrown on
// all of them. Devices: row kernels for a whole vocabulary on the CPU, else ATen operators (about
// 10 * chunk*V*4 bytes) on any. It is computed where hidden is; weight and bias must be there too.
// Targets and each tensor of the signal may be there or on the host, as they came: what is on the
// host is copied once in each call, so keep a teacher's head on the device. All else is refused
// (kInvalidArgument). The call waits for the device.
DistillResult linear_distill(const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& bias, const at::Tensor& targets,
                             const TeacherSignal& signal, const DivergenceOptions& options,
                             const parallel::VocabShard& vocab = {});

}  // namespace retort::losses
