#include "recipes/losses/policy.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "recipes/losses/detail/formed_gradient.h"
#include "recipes/losses/detail/option_check.h"
#include "recipes/losses/detail/policy_rows.h"
#include "recipes/losses/detail/vector_arguments.h"

namespace retort::losses {
namespace {

using detail::check_option;
using detail::PolicyRows;

bool by_sequence(SamplingCorrection mode) {
  return mode == SamplingCorrection::kSequenceTruncate || mode == SamplingCorrection::kSequenceMask;
}

bool truncates(SamplingCorrection mode) {
  return mode == SamplingCorrection::kTokenTruncate ||
         mode == SamplingCorrection::kSequenceTruncate;
}

// The factor of each row's loss that corrects for the generator's probabilities, and its metrics.
std::vector<double> sampling_ratios(const PolicyRows& rows, const PolicyOptions& options,
                                    PolicyResult& result) {
  std::vector<double> of_row(rows.count, 1.0);
  if (options.sampling_correction == SamplingCorrection::kNone) return of_row;
  const bool whole = by_sequence(options.sampling_correction);

  // Logarithms are summed first, because a sequence's ratio is the product of its tokens'.
  std::vector<double> ratios(whole ? rows.sequences : rows.count, 0.0);
  for (int64_t r = 0; r < rows.count; ++r) {
    const double difference = rows.old[r] - rows.generator[r];
    ratios[whole ? rows.sequence[r] : r] += difference;
    result.sampling_logp_difference_sum += std::abs(difference);
    result.sampling_logp_difference_max =
        std::max(result.sampling_logp_difference_max, std::abs(difference));
  }

  // Truncation moves a ratio that is out of bounds to the bound; masking sets it to 0, which drops
  // its rows from the loss.
  const bool truncate = truncates(options.sampling_correction);
  const double cap = options.importance_sampling_cap;
  const double floor = options.importance_sampling_floor.value_or(0);
  for (double& ratio : ratios) {
    ratio = std::exp(ratio);
    if (ratio > cap)
      ratio = truncate ? cap : 0;
    else if (ratio < floor)
      ratio = truncate ? floor : 0;
    result.sampling_ratio_sum += ratio;
    result.sampling_ratio_square_sum += ratio * ratio;
    result.sampling_ratio_min =
        result.sampling_ratio_count == 0 ? ratio : std::min(result.sampling_ratio_min, ratio);
    result.sampling_ratio_max = std::max(result.sampling_ratio_max, ratio);
    ++result.sampling_ratio_count;
  }

  for (int64_t r = 0; r < rows.count; ++r)
    of_row[r] = ratios[whole ? rows.sequence[r] : r];
  return of_row;
}

// Sets the factor of each row to 0 whose sequence is worse than the others and has become too
// unlikely since it was drawn.
void mask_off_policy(const PolicyRows& rows, const PolicyOptions& options,
                     std::vector<double>& of_row, PolicyResult& result) {
  if (!options.off_policy_mask_threshold) return;
  // The generator's own probabilities are there only with a correction. Without one the old policy
  // stands for it.
  const bool reported = options.sampling_correction != SamplingCorrection::kNone;
  std::vector<double> kl(rows.sequences, 0.0);
  for (int64_t r = 0; r < rows.count; ++r) {
    const double drawn = reported ? rows.generator[r] : rows.old[r];
    kl[rows.sequence[r]] += (drawn - rows.policy[r]) / rows.tokens[rows.sequence[r]];
  }

  // NaN fails the comparison and drops no sequence, so it reaches the loss, where it is seen.
  std::vector<bool> dropped(rows.sequences);
  for (int64_t s = 0; s < rows.sequences; ++s) {
    dropped[s] = rows.advantages[s] < 0 && kl[s] > *options.off_policy_mask_threshold;
    result.off_policy_masked += dropped[s];
  }
  for (int64_t r = 0; r < rows.count; ++r)
    if (dropped[rows.sequence[r]]) of_row[r] = 0;
}

// log(pi / pi_old) that each row's ratio is made of.
std::vector<double> log_ratios(const PolicyRows& rows, bool whole_sequences) {
  std::vector<double> of_row(rows.count);
  for (int64_t r = 0; r < rows.count; ++r)
    of_row[r] = rows.policy[r] - rows.old[r];
  if (!whole_sequences) return of_row;

  // GSPO: the ratio of a sequence is the geometric mean of its tokens' ratios, so its logarithm is
  // the mean of theirs.
  std::vector<double> mean(rows.sequences, 0.0);
  for (int64_t r = 0; r < rows.count; ++r)
    mean[rows.sequence[r]] += of_row[r] / rows.tokens[rows.sequence[r]];
  for (int64_t r = 0; r < rows.count; ++r)
    of_row[r] = mean[rows.sequence[r]];
  return of_row;
}

// The bounds at which ratios are clipped.
struct ClipRange {
  explicit ClipRange(const PolicyOptions& options)
      : low(1 - options.epsilon),
        high(1 + options.epsilon_high.value_or(options.epsilon)),
        delta(options.delta.value_or(std::numeric_limits<double>::infinity())),
        cap(options.epsilon_high.value_or(std::numeric_limits<double>::infinity())) {}

  double low, high;
  double delta;  // with A < 0
  double cap;    // kCispo's
};

enum class Clip { kNone, kLow, kHigh, kDelta };

// A row's loss and its derivative with respect to what is differentiated.
struct Clipped {
  double value;
  double slope;
  Clip clip = Clip::kNone;
};

// PPO's clipped surrogate -min(ratio A, clip(ratio) A), with its slope by log(ratio). A clipped row
// has no slope: its ratio has moved far enough.
Clipped clipped_surrogate(double log_ratio, double advantage, const ClipRange& range) {
  const double ratio = std::exp(log_ratio);
  if (advantage < 0 && ratio < range.low) return {-range.low * advantage, 0, Clip::kLow};
  if (advantage < 0 && ratio > range.delta) return {-range.delta * advantage, 0, Clip::kDelta};
  if (advantage > 0 && ratio > range.high) return {-range.high * advantage, 0, Clip::kHigh};
  // The factor is the logarithm, not the ratio: NaN stays NaN, and a ratio that overflowed does not
  // become NaN.
  if (advantage == 0) return {0 * log_ratio, 0};
  return {-ratio * advantage, -ratio * advantage};
}

// CISPO: -min(ratio, cap) A log p, with its slope by log p. The ratio is a weight without a
// gradient, so no row loses its slope.
Clipped capped_weight(double log_ratio, double advantage, double logp, const ClipRange& range) {
  if (advantage == 0) return {0 * log_ratio, 0};
  const double ratio = std::exp(log_ratio);
  const double weight = ratio > range.cap ? range.cap : ratio;  // NaN stays
  return {-weight * advantage * logp, -weight * advantage,
          ratio > range.cap && advantage > 0 ? Clip::kHigh : Clip::kNone};
}

// The weight of a row in the sum: kGrpo takes the mean over each sequence.
double mean_weight(const PolicyRows& rows, const PolicyOptions& options, int64_t r) {
  return options.loss_type == PolicyLossType::kGrpo
             ? 1.0 / static_cast<double>(rows.tokens[rows.sequence[r]])
             : 1.0;
}

// Returns the value of the KL to the reference and adds its derivative to `gradient`.
double add_kl(const PolicyRows& rows, const PolicyOptions& options,
              const std::vector<double>& log_ratio, std::vector<double>& gradient,
              PolicyResult& result) {
  if (options.beta == 0) return 0;
  const bool corrected = options.use_bias_correction_kl;
  const bool by_sequence = options.importance_sampling_level == ImportanceSamplingLevel::kSequence;

  // The estimate k3 of each row, times the ratio if it is corrected. The first part of the
  // derivative is k3's, the second that of the ratio, which the rows of a sequence may share.
  double value = 0;
  std::vector<double> of_sequence(rows.sequences, 0.0);
  for (int64_t r = 0; r < rows.count; ++r) {
    // k3 = e^d - 1 - d. With expm1 it keeps its digits where the two policies nearly agree.
    const double d = rows.reference[r] - rows.policy[r];
    const double ratio = corrected ? std::exp(log_ratio[r]) : 1;
    const double kl = ratio * (std::expm1(d) - d);
    const double scale = mean_weight(rows, options, r) * options.beta;
    result.kl_sum += kl;
    value += scale * kl;
    gradient[r] -= scale * ratio * std::expm1(d);
    if (corrected) (by_sequence ? of_sequence[rows.sequence[r]] : gradient[r]) += scale * kl;
  }

  if (corrected && by_sequence)
    for (int64_t r = 0; r < rows.count; ++r)
      gradient[r] +=
          of_sequence[rows.sequence[r]] / static_cast<double>(rows.tokens[rows.sequence[r]]);
  return value;
}

// A sequence's clipping is counted once where its rows share ratio and advantage.
void count_clips(const PolicyRows& rows, const std::vector<Clipped>& terms, bool whole_sequences,
                 PolicyResult& result) {
  std::vector<bool> seen(rows.sequences, false);
  result.clip_count = whole_sequences ? rows.sequences : rows.count;
  for (int64_t r = 0; r < rows.count; ++r) {
    if (whole_sequences && seen[rows.sequence[r]]) continue;
    seen[rows.sequence[r]] = true;
    result.clip_low_sum += terms[r].clip == Clip::kLow;
    result.clip_high_sum += terms[r].clip == Clip::kHigh;
    result.clip_region_sum += terms[r].clip == Clip::kLow || terms[r].clip == Clip::kHigh;
    result.clip_delta_sum += terms[r].clip == Clip::kDelta;
  }
}

}  // namespace

void PolicyOptions::validate() const {
  // The clip bounds. cispo caps the ratio itself, so the options of the two-sided clip are refused
  // with it rather than left without effect.
  check_option(epsilon > 0 && epsilon < 1, "epsilon", "must be in (0, 1)", epsilon);
  if (epsilon_high)
    check_option(*epsilon_high > 0 && std::isfinite(*epsilon_high), "epsilon_high",
                 "must be positive and finite", *epsilon_high);
  if (loss_type == PolicyLossType::kCispo) {
    check_option(epsilon_high && *epsilon_high >= 1, "epsilon_high",
                 "must be given with loss_type: cispo, at least 1: the cap of the ratio itself",
                 epsilon_high.value_or(0));
    check_option(epsilon == PolicyOptions().epsilon, "epsilon",
                 "has no effect with loss_type: cispo, which caps the ratio at epsilon_high",
                 epsilon);
    check_option(!delta, "delta", "has no effect with loss_type: cispo", delta.value_or(0));
  }
  if (delta)
    check_option(*delta > 1 + epsilon_high.value_or(epsilon) && std::isfinite(*delta), "delta",
                 "must be finite and above 1 + epsilon_high", *delta);

  // The KL, and the correction for a generator whose probabilities differ from the trainer's.
  check_option(beta >= 0 && std::isfinite(beta), "beta", "must be finite and not negative", beta);
  check_option(beta > 0 || use_bias_correction_kl, "use_bias_correction_kl",
               "has no effect without a KL in the loss: it is beta's", beta);
  check_option(importance_sampling_cap > 0 && std::isfinite(importance_sampling_cap),
               "importance_sampling_cap", "must be positive and finite", importance_sampling_cap);
  if (off_policy_mask_threshold)
    check_option(*off_policy_mask_threshold > 0 && std::isfinite(*off_policy_mask_threshold),
                 "off_policy_mask_threshold", "must be positive and finite",
                 *off_policy_mask_threshold);
  check_option(sampling_correction != SamplingCorrection::kNone ||
                   importance_sampling_cap == PolicyOptions().importance_sampling_cap,
               "importance_sampling_cap", "has no effect without a sampling_correction",
               importance_sampling_cap);
  if (!importance_sampling_floor) return;
  check_option(
      *importance_sampling_floor > 0 && *importance_sampling_floor < importance_sampling_cap,
      "importance_sampling_floor", "must be positive and below importance_sampling_cap",
      *importance_sampling_floor);
  check_option(sampling_correction != SamplingCorrection::kNone, "importance_sampling_floor",
               "has no effect without a sampling_correction", *importance_sampling_floor);
}

double policy_divisor(PolicyLossType type, const PolicyCounts& global) {
  if (global.sequences < 0 || global.tokens < 0 || global.max_completion_tokens < 0)
    throw Error(ErrorCode::kInvalidArgument, "the counts of a batch must not be negative")
        .with("sequences", global.sequences)
        .with("tokens", global.tokens)
        .with("max_completion_tokens", global.max_completion_tokens);
  if (type == PolicyLossType::kDrGrpo && global.max_completion_tokens == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "dr_grpo divides by the generation limit: set max_completion_tokens");

  double count = 0;
  switch (type) {
    case PolicyLossType::kGrpo: count = static_cast<double>(global.sequences); break;
    case PolicyLossType::kBnpo:
    case PolicyLossType::kDapo:
    case PolicyLossType::kCispo: count = static_cast<double>(global.tokens); break;
    case PolicyLossType::kDrGrpo:
      count =
          static_cast<double>(global.sequences) * static_cast<double>(global.max_completion_tokens);
      break;
  }
  // A batch without tokens has a loss of 0, which divided by 0 would be NaN.
  return std::max(count, 1.0);
}

PolicyResult policy_loss(const PolicyInputs& inputs, const PolicyOptions& options) {
  options.validate();
  const PolicyRows rows(inputs, options);
  PolicyResult result;
  result.num_tokens = rows.count;
  result.num_sequences = rows.sequences;

  // Each row's surrogate needs its ratio, the clip bounds, and a weight, which is 0 where the row
  // is masked out.
  const bool by_sequence = options.importance_sampling_level == ImportanceSamplingLevel::kSequence;
  std::vector<double> correction = sampling_ratios(rows, options, result);
  mask_off_policy(rows, options, correction, result);
  const std::vector<double> log_ratio = log_ratios(rows, by_sequence);
  const ClipRange range(options);
  const bool cispo = options.loss_type == PolicyLossType::kCispo;

  // The clipped surrogate. With sequence-level ratios a row's slope belongs to its sequence's
  // ratio, unless the ratio has no gradient.
  const bool shared_slope = by_sequence && !cispo;
  double loss = 0;
  std::vector<Clipped> terms(rows.count);
  std::vector<double> gradient(rows.count, 0.0);
  std::vector<double> of_sequence(rows.sequences, 0.0);
  for (int64_t r = 0; r < rows.count; ++r) {
    terms[r] = cispo ? capped_weight(log_ratio[r], rows.advantage(r), rows.policy[r], range)
                     : clipped_surrogate(log_ratio[r], rows.advantage(r), range);
    const double scale = mean_weight(rows, options, r) * correction[r];
    if (scale == 0 || !rows.has_surrogate(r)) continue;  // dropped, whatever its ratio
    loss += scale * terms[r].value;
    (shared_slope ? of_sequence[rows.sequence[r]] : gradient[r]) += scale * terms[r].slope;
  }

  // A sequence's ratio is the mean of its rows' logarithms, so each row gets its share.
  if (shared_slope)
    for (int64_t r = 0; r < rows.count; ++r)
      gradient[r] =
          of_sequence[rows.sequence[r]] / static_cast<double>(rows.tokens[rows.sequence[r]]);

  loss += add_kl(rows, options, log_ratio, gradient, result);
  count_clips(rows, terms, by_sequence && !rows.by_token, result);

  // All sums were taken in float64; autograd gets the finished gradient in float32.
  const at::Tensor formed = at::empty({rows.count}, at::kFloat);
  std::copy(gradient.begin(), gradient.end(), formed.data_ptr<float>());
  result.loss_sum = detail::scalar_with_gradients(loss, {{inputs.policy_logps, formed}});
  return result;
}

at::Tensor distillation_advantages(const at::Tensor& student_logps,
                                   const at::Tensor& teacher_logps) {
  if (!student_logps.defined() || student_logps.dim() != 1)
    throw Error(ErrorCode::kInvalidArgument,
                "student_logps must be [R] float32, one for each sampled token");
  detail::require_vector(student_logps, "student_logps", student_logps.size(0));
  detail::require_vector(teacher_logps, "teacher_logps", student_logps.size(0));
  const at::Tensor result = at::empty({student_logps.size(0)}, at::kFloat);
  const detail::FloatVector student(student_logps), teacher(teacher_logps);
  float* out = result.data_ptr<float>();
  for (int64_t r = 0; r < result.size(0); ++r)
    out[r] = static_cast<float>(teacher[r] - student[r]);
  return result;
}

void require_policy_gradient(SampledKl estimate, bool policy_gradient) {
  if (estimate == SampledKl::kK1 && !policy_gradient)
    throw Error(
        ErrorCode::kInvalidArgument,
        "k1 on sampled tokens cannot be a loss: the gradient of log p(a) - log q(a) does not "
        "depend on the teacher q and is 0 in expectation; use it as the reward of a policy "
        "gradient (distillation_advantages)")
        .with("estimate", enum_name(estimate));
}

}  // namespace retort::losses
