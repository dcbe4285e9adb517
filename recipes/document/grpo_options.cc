#include "recipes/document/grpo_options.h"

#include <cmath>

#include "base/error.h"

namespace retort::recipes {

losses::PolicyOptions GrpoOptions::policy() const {
  return {.loss_type = loss_type,
          .importance_sampling_level = importance_sampling_level,
          .epsilon = epsilon,
          .epsilon_high = epsilon_high,
          .delta = delta,
          .beta = kl_in_reward ? 0 : beta,
          .use_bias_correction_kl = use_bias_correction_kl,
          .sampling_correction = correction(),
          .importance_sampling_cap = importance_sampling_cap,
          .importance_sampling_floor = importance_sampling_floor,
          .off_policy_mask_threshold = off_policy_mask_threshold};
}

losses::SamplingCorrection GrpoOptions::correction() const {
  using losses::SamplingCorrection;
  switch (sampling_correction) {
    case CorrectionChoice::kAuto:
    case CorrectionChoice::kNone: break;
    case CorrectionChoice::kTokenTruncate: return SamplingCorrection::kTokenTruncate;
    case CorrectionChoice::kTokenMask: return SamplingCorrection::kTokenMask;
    case CorrectionChoice::kSequenceTruncate: return SamplingCorrection::kSequenceTruncate;
    case CorrectionChoice::kSequenceMask: return SamplingCorrection::kSequenceMask;
  }
  return SamplingCorrection::kNone;
}

// Samples that run ahead, or that several steps share out, are older than the weights that are
// trained on them. Without a correction the ratio is then to the policy that drew them.
OldPolicy GrpoOptions::old_policy() const {
  if (old_logps != OldPolicy::kAuto) return old_logps;
  const bool older = max_staleness > 0 || num_mini_batches > 1;
  const bool corrected = correction() != losses::SamplingCorrection::kNone;
  return older && !corrected ? OldPolicy::kGenerator : OldPolicy::kTrainer;
}

int64_t GrpoOptions::steps_between_pushes(int64_t sync_every_steps) const {
  // Weights are pushed between rollouts only, so the interval is rounded up to whole rollouts.
  const int64_t steps = steps_per_rollout();
  return (sync_every_steps + steps - 1) / steps * steps;
}

int64_t GrpoOptions::staleness_left(int64_t sync_every_steps) const {
  const int64_t oldest = steps_between_pushes(sync_every_steps) - 1;
  return max_staleness - oldest;
}

void GrpoOptions::validate() const {
  const auto require = [](bool good, const std::string& message) {
    if (!good) throw Error(ErrorCode::kInvalidArgument, message);
  };
  policy().validate();

  // These say how often a rollout is learned from, and how old it may be.
  require(num_mini_batches >= 1, "num_mini_batches must be at least 1");
  require(num_iterations >= 1, "num_iterations must be at least 1");
  require(max_staleness >= 0, "max_staleness must be 0 or above");

  // These say what a reward is compared with. A sum of rewards that were compared each by itself is
  // not divided again.
  require(advantage == AdvantageType::kGrpo || scale_rewards == losses::ScaleRewards::kGroup,
          "scale_rewards has no effect without advantage: grpo");
  const auto require_with_sum = [&](bool good, const std::string& message) {
    require(good || !decouples_rewards(),
            message + " with multi_objective_aggregation: normalize_then_sum");
  };
  require(advantage == AdvantageType::kGrpo || !decouples_rewards(),
          "multi_objective_aggregation has no effect without advantage: grpo");
  require_with_sum(scale_rewards == losses::ScaleRewards::kGroup, "scale_rewards has no effect");
  require_with_sum(!kl_in_reward,
                   "kl_in_reward takes from a sum of rewards, which is not compared");

  // These add to the loss, or say which tokens are in it.
  require(entropy_coef >= 0 && std::isfinite(entropy_coef),
          "entropy_coef must be finite and not negative");
  require(top_entropy_quantile >= 0 && top_entropy_quantile <= 1,
          "top_entropy_quantile must be in [0, 1]");

  // These say what is drawn again, or paid less. A penalty without a weight would be silently
  // ignored.
  require(max_resamples >= 0, "max_resamples must be 0 or above");
  require(
      max_resamples == 0 || advantage != AdvantageType::kReinforcePlusPlus,
      "max_resamples has no effect with advantage: reinforce_plus_plus, which compares a sample "
      "with the batch's, not with those of its prompt");
  require(overlong_penalty_tokens >= 0, "overlong_penalty_tokens must be 0 or above");
  require(beta > 0 || !kl_in_reward, "kl_in_reward has no effect with beta: 0");
}

}  // namespace retort::recipes
