// Linear head + divergence from a teacher (+ cross-entropy mix), chunk by chunk, each chunk's
// gradient formed in the forward pass. For TeacherHidden neither [R, V] matrix ever exists whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallel/vocab_shard.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses {

// The numbers of the rows that the host reads beside their loss.
struct DistillSums {
  double kd_sum = 0;  // unweighted
  double ce_sum = 0;  // likewise; always computed
  // sum over rows of the teacher's mass on its K ids (hidden, full: R; sampled: of the weights)
  double teacher_mass_sum = 0;
  double student_mass_sum = 0;  // the student's mass on the same ids
  // hidden: the teacher's mass on ids >= common_vocab before masking
  double masked_mass_sum = 0;
  double entropy_sum = 0;  // of the student at temperature 1
  int64_t num_correct = 0;

  static constexpr int64_t kNumbers = 8;
  // Reads the kNumbers of UnreadDistill::numbers, which must be in host memory. kCorrupt, kMismatch
  // with the row: a teacher's row was no distribution, or had ids that cannot be.
  static DistillSums of(const double* numbers);
};

struct DistillResult : DistillSums {
  // scalar float32 with autograd: sum over rows of (1-kd_ratio)*CE + kd_ratio*KD
  at::Tensor loss_sum;
  int64_t count = 0;  // R
};

// The same numbers before anybody has waited for a device.
struct UnreadDistill {
  at::Tensor loss_sum;  // as above
  int64_t count = 0;
  at::Tensor numbers;  // [8] float64, where hidden is: what DistillSums::of() reads
};

// The loss of R rows against a teacher, with its gradient and metrics.
//
// Arguments: hidden [R, H], weight [V, H], bias [V] or undefined, targets [R] int64; the signal's
//   rows match hidden's one to one.
// Split vocabulary: weight and bias are this rank's rows, the ids [begin, end) with end = begin +
//   rows. hidden, targets and options are the same on every rank, and so is the result; dH is what
//   these rows contribute (the sum over the ranks is the whole), dW theirs alone. The teacher's
//   side is cut at the same ids, whatever its own size:
//   - TeacherHidden: `hidden` is whole on every rank. `weight` and `bias` are the teacher's rows
//     [begin, min(end, Vt)), but the last rank that has any student row has [begin, Vt), so every
//     teacher row above the student's vocabulary too, and a rank without student rows has none.
//     Row i of a rank is thus the id begin + i. Those below common_vocab stand beside the student's
//     row i; those from common_vocab on are masked, and only add to masked_mass_sum.
//   - TeacherFull: `logps` are the columns [begin, min(end, C)) of C common ids ([R, 0] above
//     them); their total mass over the ranks is still 1.
//   - TeacherTopK, TeacherSampled: whole on every rank, with ids of the whole vocabulary.
// Collectives: none for a whole vocabulary; else, all in the forward pass, a vote on the arguments,
//   one all-gather of 8 bytes for TeacherHidden, then two all-reduces a chunk (three for
//   TeacherHidden and TeacherFull with jsd, skewed and tvd). Every rank must call.
// Softcap: as linear_cross_entropy, of the student's logits alone; TeacherHidden has none.
// Memory: as linear_cross_entropy, plus chunk*Vt*4 bytes for TeacherHidden; on a device, or of a
//   split vocabulary, about 10*chunk*V*4 for the chunk.
// Errors: kInvalidArgument or kMismatch when shapes, ids, devices or vocabularies cannot belong
//   together; kCorrupt with the row when the teacher's numbers are no distribution. What one rank
//   finds wrong is thrown on all of them.
// Devices: a whole vocabulary on the CPU has row kernels, everything else ATen operators. It is
//   computed where hidden is; weight and bias must be there too. targets and each tensor of the
//   signal may be there or on the host, as they came: what is on the host is copied once in each
//   call, so keep a teacher's head on the device. The call waits for the device once, for the sums
//   and to know that the teacher's rows can be; unread_distill() does not, and leaves both to
//   DistillSums::of().
DistillResult linear_distill(const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& bias, const at::Tensor& targets,
                             const TeacherSignal& signal, const DivergenceOptions& options,
                             const parallel::VocabShard& vocab = {}, double softcap = 0);
UnreadDistill unread_distill(const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& bias, const at::Tensor& targets,
                             const TeacherSignal& signal, const DivergenceOptions& options,
                             const parallel::VocabShard& vocab = {}, double softcap = 0);

}  // namespace retort::losses
