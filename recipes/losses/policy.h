// Clipped policy-gradient losses over sampled tokens (GRPO and its family). Formulas:
// docs/losses.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "base/options.h"

namespace retort::losses {

// The ways in which token losses become one number; see policy_divisor. kCispo has another token
// loss besides: the ratio is a weight of log p that has no gradient, capped, so that no token loses
// its gradient.
enum class PolicyLossType { kGrpo, kBnpo, kDrGrpo, kDapo, kCispo };
// The ratio to the old policy: of each token, or of the sequence (the geometric mean of its tokens'
// ratios: GSPO).
enum class ImportanceSamplingLevel { kToken, kSequence };
// Ratios trainer / generator, of tokens or of whole sequences (product), that are out of bounds are
// moved to the bound, or dropped (0).
enum class SamplingCorrection {
  kNone,
  kTokenTruncate,
  kTokenMask,
  kSequenceTruncate,
  kSequenceMask
};

struct PolicyOptions {
  PolicyLossType loss_type = PolicyLossType::kDapo;
  ImportanceSamplingLevel importance_sampling_level = ImportanceSamplingLevel::kToken;
  // the ratio is clipped to [1 - epsilon, 1 + epsilon_high]; in (0, 1)
  double epsilon = 0.2;
  // null: epsilon. With kCispo the cap of the ratio itself (as TRL's epsilon_high), at least 1,
  // which must be given, and epsilon must not.
  std::optional<double> epsilon_high;
  // Two-sided clip: where A < 0 the ratio counts as at most this. Above 1 + epsilon_high; null: no
  // bound; not with kCispo.
  std::optional<double> delta;
  double beta = 0.0;  // of the k3 KL to the reference; 0: no reference is needed
  // k3 counts times the ratio, with its gradient, neither clipped nor corrected nor masked: the
  // ratio that `importance_sampling_level` says. By tokens the gradient is then that of KL(pi,
  // reference) in expectation; k3's own is that of KL(reference, pi). TRL 1.16's option and
  // default (DeepSeek-V3.2). False with beta: 0 is refused.
  bool use_bias_correction_kl = true;
  // TRL's vllm_importance_sampling_correction, _mode, _clip_max and _clip_min; its defaults are
  // sequence_mask, 3 and no lower bound. A ratio below the floor becomes the floor where those
  // above the cap become the cap, and 0 where they become 0 (IcePop). Positive; no effect with
  // kNone.
  SamplingCorrection sampling_correction = SamplingCorrection::kNone;
  double importance_sampling_cap = 3.0;
  std::optional<double> importance_sampling_floor;  // below the cap; null: none
  // A sequence with A < 0 whose mean over its tokens of log(pi_drawn / pi) is above this has no
  // surrogate, only its KL (off-policy sequence mask, DeepSeek-V3.2); pi_drawn: as the generator
  // reported it with a sampling_correction, else pi_old. Positive; null: none is dropped.
  std::optional<double> off_policy_mask_threshold;

  void validate() const;  // kInvalidArgument: ranges; a cap other than 3 with kNone
};

// R sampled tokens (rows) of S sequences; prompts, padding and masked tokens are not rows. A
// sequence's rows must all be in one call (in any order: sequence_of_row tells), and a sequence may
// have none.
struct PolicyInputs {
  // [R] float32, may require grad: log-probabilities at the sampling temperature
  at::Tensor policy_logps;
  // [R] float32 of the trainer when the samples were drawn; undefined: policy_logps itself,
  // detached
  at::Tensor old_logps;
  at::Tensor reference_logps;  // [R] float32; defined exactly if beta > 0
  // [R] float32 as the generator reported them; defined exactly if there is a sampling_correction
  at::Tensor generator_logps;
  at::Tensor sequence_of_row;  // [R] int64 in [0, S)
  // Exactly one of the two:
  at::Tensor advantages;  // [S] float32
  // [R] float32, e.g. distillation_advantages; not with an off_policy_mask_threshold
  at::Tensor token_advantages;
  // [R] bool: false takes a row's surrogate out of the sum, not its KL, its share in a sequence's
  // ratio, nor its place in divisors and counts; undefined: none
  at::Tensor surrogate_mask;
  int64_t num_sequences = 0;  // S
};

struct PolicyResult {
  // scalar float32 attached to policy_logps; divide by policy_divisor of the GLOBAL batch, once
  at::Tensor loss_sum;
  int64_t num_tokens = 0;     // R
  int64_t num_sequences = 0;  // S
  // of what beta weighs, over tokens: kl = kl_sum / tokens
  double kl_sum = 0;
  // clipped with A < 0; clip_ratio/low_mean = clip_low_sum / clip_count, and so on
  double clip_low_sum = 0;
  double clip_high_sum = 0;       // clipped with A > 0
  double clip_region_sum = 0;     // either
  double clip_delta_sum = 0;      // at delta, with A < 0; not in clip_region_sum, as in TRL
  int64_t clip_count = 0;         // R; S with sequence-level ratios and one advantage a sequence
  int64_t off_policy_masked = 0;  // sequences that off_policy_mask_threshold has dropped

  // With a sampling_correction:
  // |old - generator| over tokens
  double sampling_logp_difference_sum = 0;
  double sampling_logp_difference_max = 0;
  // after the bounds, over sampling_ratio_count ratios (R, or S by sequence)
  double sampling_ratio_sum = 0;
  double sampling_ratio_min = 0;
  double sampling_ratio_max = 0;
  int64_t sampling_ratio_count = 0;
  // of their squares: (sum)^2 / (count * this) is the share of samples that are left in effect
  double sampling_ratio_square_sum = 0;
};

// The counts of the global batch, summed over micro-batches and ranks.
struct PolicyCounts {
  int64_t sequences = 0;              // those without rows included
  int64_t tokens = 0;                 // rows
  int64_t max_completion_tokens = 0;  // the generation limit; dr_grpo only
};
// The one number that the summed loss is divided by, as in TRL 1.16; at least 1, as TRL's clamp.
//   grpo     sequences: the mean over sequences of each one's mean over its tokens
//   dr_grpo  sequences * max_completion_tokens
//   dapo     tokens; cispo too
//   bnpo     tokens (of the global batch; TRL takes each micro-batch's own)
// A sequence without rows (left out because it was cut off) adds 0 to the sum. In the divisor it
// counts as one sequence with grpo and dr_grpo, and not at all with the others.
//
// Errors: kInvalidArgument for negative counts, or dr_grpo without max_completion_tokens.
double policy_divisor(PolicyLossType type, const PolicyCounts& global);

// The sum over tokens of -min(ratio A, clip(ratio) A) * sampling ratio + beta * ratio * k3; kCispo:
// of -min(ratio, epsilon_high) A log p * sampling ratio + beta * ratio * k3, ratio without a
// gradient in the first term. Without use_bias_correction_kl the KL is beta * k3.
//
// Arithmetic: value and gradient are formed in one pass in float64; a ratio that overflows leaves
//   no NaN in tokens that are clipped.
// Gradient: differentiable once. R = 0 gives a zero that still reaches policy_logps.
// Errors: kInvalidArgument for what options.validate() refuses, shapes, dtypes, a row's sequence
//   outside [0, S) (with the row), inputs that are missing or would not be used.
// Collectives: none.
// Devices: every vector on any; each is read with a copy to the host, where it is computed.
//   loss_sum is on policy_logps's.
// Threads: any.
PolicyResult policy_loss(const PolicyInputs& inputs, const PolicyOptions& options);

// On-policy distillation on the sampled tokens: A_t = log q_teacher(a_t) - log p_student(a_t), the
// negative k1 estimate of reverse KL as a reward of its token. [R] float32 both, at the same
// temperature; the result [R] is detached and on the CPU, wherever these are: pass it as
// token_advantages.
at::Tensor distillation_advantages(const at::Tensor& student_logps,
                                   const at::Tensor& teacher_logps);

// Estimates of KL(student, teacher) from a token sampled by the student, d = log q - log p: k1 =
// -d, k2 = d^2 / 2, k3 = exp(d) - d - 1.
enum class SampledKl { kK1, kK2, kK3 };
// kInvalidArgument for k1 as a loss to differentiate (`policy_gradient` false): the gradient of log
// p(a) - log q(a) is that of log p(a) whatever the teacher says, and 0 in expectation. With a
// policy gradient every estimate may be a reward.
void require_policy_gradient(SampledKl estimate, bool policy_gradient);

}  // namespace retort::losses

template <>
struct retort::EnumNames<retort::losses::PolicyLossType> {
  using E = retort::losses::PolicyLossType;
  static constexpr std::array<std::pair<std::string_view, E>, 5> values{{{"grpo", E::kGrpo},
                                                                         {"bnpo", E::kBnpo},
                                                                         {"dr_grpo", E::kDrGrpo},
                                                                         {"dapo", E::kDapo},
                                                                         {"cispo", E::kCispo}}};
};
template <>
struct retort::EnumNames<retort::losses::ImportanceSamplingLevel> {
  using E = retort::losses::ImportanceSamplingLevel;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"token", E::kToken}, {"sequence", E::kSequence}}};
};
template <>
struct retort::EnumNames<retort::losses::SamplingCorrection> {
  using E = retort::losses::SamplingCorrection;
  static constexpr std::array<std::pair<std::string_view, E>, 5> values{
      {{"none", E::kNone},
       {"token_truncate", E::kTokenTruncate},
       {"token_mask", E::kTokenMask},
       {"sequence_truncate", E::kSequenceTruncate},
       {"sequence_mask", E::kSequenceMask}}};
};
template <>
struct retort::EnumNames<retort::losses::SampledKl> {
  using E = retort::losses::SampledKl;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"k1", E::kK1}, {"k2", E::kK2}, {"k3", E::kK3}}};
};
