// Linear head + distance from a teacher with another tokenizer (ULD, GOLD), chunk by chunk of
// groups of tokens, each chunk's gradient formed in the forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/vocab_shard.h"
#include "recipes/losses/teacher_signal.h"
#include "recipes/losses/token_groups.h"

namespace retort::losses {

// GOLD: ids that are one token in both vocabularies are compared one by one, the others by size.
struct MatchedIds {
  // [M] int64 on the host: pair i is one token in both vocabularies; each id at most once
  at::Tensor student, teacher;
  double matched_weight = 0.5, unmatched_weight = 0.5;  // of the two parts of a distance
  double beta = 0.5;                                    // of the matched part's generalised JSD
};

struct UldOptions {
  double temperature = 1.0;  // divides both sides' logits
  // leave out the product of the probabilities of a group's earlier tokens, on both sides
  bool normalize = false;
  std::optional<MatchedIds> matched;  // set: GOLD, else ULD
  // teacher ids >= this are left out (rows of its head that no token names); 0: none
  int64_t teacher_ids = 0;
  double kd_weight = 1.0;    // loss = kd_weight * sum_g weight_g D_g + ce_weight * sum_r CE_r
  double ce_weight = 0.0;    // of every row, in a group or not, at temperature 1
  int64_t chunk_tokens = 0;  // groups formed at once; 0: chosen from sizes alone

  void validate() const;  // kInvalidArgument: ranges, shapes of `matched`
};

// The numbers of the rows that the host reads beside their loss.
struct UldSums {
  double kd_sum = 0;          // sum over groups of weight_g D_g
  double one_to_one_sum = 0;  // of D_g, unweighted, of groups of one token on each side
  double merged_sum = 0;      // likewise of all others
  // GOLD: of the two parts of D_g, without any weight
  double matched_sum = 0, unmatched_sum = 0;
  double ce_sum = 0, entropy_sum = 0;  // over all rows, temperature 1; always computed

  static constexpr int64_t kNumbers = 8;
  // Reads UnreadUld::numbers, which must be in host memory. kCorrupt, kMismatch with the teacher's
  // row: it was no distribution, or had ids that cannot be.
  static UldSums of(const double* numbers);
};

struct UnreadUld {
  at::Tensor loss_sum;  // scalar float32 with autograd
  at::Tensor numbers;   // [kNumbers] float64, where hidden is: what UldSums::of() reads
};

// The loss of R rows against Rt rows of a teacher, whose tokens are others. Formulas: "Another
// tokenizer" in docs/losses.md.
//
// Arguments: hidden [R, H], weight [V, H], bias [V] or undefined, targets [R] int64: the token that
//   each row predicts. The signal has Rt rows, teacher_targets [Rt] int64 are the teacher's tokens
//   there. `groups` say which rows belong together, in any order; rows of no group add their
//   cross-entropy alone. TeacherFull and TeacherTopK are at options.temperature already.
//   TeacherTopK (ULD alone): a lower bound of the distance.
// Gradient: of a group's last row it is formed here and scaled in backward. Its earlier rows, and
//   rows of no group, go through linear_log_probs. Differentiable once. Without groups, or rows,
//   the result is a zero that still reaches hidden, weight and bias.
// Split vocabulary: weight and bias are this rank's rows, and so are the teacher's, of its own
//   vocabulary: rank r of n holds [vocab_begin(Vt, n, r), vocab_end(Vt, n, r)) of TeacherHidden's
//   weight and bias, or of TeacherFull's columns. TeacherTopK is whole. Everything else is the same
//   on every rank, and so is the result; dH is what these rows contribute, dW theirs alone.
// Collectives: none for a whole vocabulary; else, all in the forward pass, two votes on the
//   arguments and an all-gather of 8 bytes (not TeacherTopK), those of linear_log_probs for the
//   other rows, then for each chunk of n groups an all-gather of n*V*4 bytes, and one of n*Vt*4
//   (TeacherHidden, TeacherFull; likewise for the teacher's earlier rows). Every rank must call.
// Memory: beyond the inputs chunk*(V + Vt)*4*4 bytes on the CPU, with another threads*(V + Vt)*16
//   for sorting; about twice as much for GOLD, and on a device chunk*(V + Vt)*4*8; R*H*sizeof for
//   the copies of hidden's and the teacher's rows in the groups' order; V*H*4 (dW), twice where
//   rows go through linear_log_probs, whose memory is besides. TeacherTopK: K for Vt.
// Errors: kInvalidArgument when shapes, ids, groups or devices cannot belong together, for GOLD on
//   TeacherTopK, and for TeacherSampled; kMismatch when the ranks' rows of the teacher do not line
//   up; kCorrupt with the teacher's row, of a group, whose numbers are no distribution: here if
//   they are on the CPU, else by UldSums::of(). What one rank finds wrong is thrown on all.
// Devices: as linear_distill. The call does not wait for the device.
UnreadUld unread_uld(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& targets, const TeacherSignal& signal,
                     const at::Tensor& teacher_targets, const std::vector<TokenGroup>& groups,
                     const UldOptions& options, const parallel::VocabShard& vocab = {},
                     double softcap = 0);

}  // namespace retort::losses
