// A recipe's `grpo:` block: advantages, the clipped loss, and how far generation may run ahead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"
#include "recipes/losses/advantages.h"
#include "recipes/losses/policy.h"

namespace retort::recipes {

// The baseline that a sample's reward is compared with.
enum class AdvantageType { kGrpo, kRloo, kReinforcePlusPlus };

// The ways in which several rewards become one advantage: their weighted sum is compared within its
// group, or each of them is, and then the weighted sum of what comes of it within the batch (GDPO).
enum class MultiObjectiveAggregation { kSumThenNormalize, kNormalizeThenSum };

// losses::SamplingCorrection, or the one that the generator calls for: sequence_mask for an engine
// of others, whose arithmetic is not the trainer's, else none.
enum class CorrectionChoice {
  kAuto,
  kNone,
  kTokenTruncate,
  kTokenMask,
  kSequenceTruncate,
  kSequenceMask
};

// Whose probabilities the ratio is to.
//   kTrainer    the student's own, before the first step on the rollout: of each sample there is a
//               ratio of what the steps since then have made of it (TRL; with a sampling_correction
//               decoupled PPO, arXiv 2505.24298, whose weight is that of these to the generator's)
//   kGenerator  those that the generator reports
//   kAuto       kTrainer with a sampling_correction, or where all steps on a rollout are iterations
//               on samples of the student of then; else kGenerator, which costs no forward pass
enum class OldPolicy { kAuto, kGenerator, kTrainer };

struct GrpoOptions {
  double beta = 0.0;
  bool use_bias_correction_kl = true;
  double epsilon = 0.2;
  std::optional<double> epsilon_high;
  std::optional<double> delta;
  losses::PolicyLossType loss_type = losses::PolicyLossType::kDapo;
  AdvantageType advantage = AdvantageType::kGrpo;
  losses::ScaleRewards scale_rewards = losses::ScaleRewards::kGroup;
  MultiObjectiveAggregation multi_objective_aggregation =
      MultiObjectiveAggregation::kSumThenNormalize;
  int64_t num_mini_batches = 1;
  int64_t num_iterations = 1;
  losses::ImportanceSamplingLevel importance_sampling_level =
      losses::ImportanceSamplingLevel::kToken;
  OldPolicy old_logps = OldPolicy::kAuto;
  CorrectionChoice sampling_correction = CorrectionChoice::kAuto;
  double importance_sampling_cap = 3.0;
  std::optional<double> importance_sampling_floor;
  std::optional<double> off_policy_mask_threshold;
  int64_t max_staleness = 0;
  int64_t max_resamples = 0;
  bool mask_truncated_completions = false;
  int64_t overlong_penalty_tokens = 0;
  bool kl_in_reward = false;
  double entropy_coef = 0.0;
  double top_entropy_quantile = 1.0;
  std::string reference = "reference";

  template <class V>
  void fields(V& visit) {
    // The loss.
    visit("beta", beta, "weight of the k3 KL to the reference; 0: no reference role");
    visit("use_bias_correction_kl", use_bias_correction_kl,
          "the k3 KL counts times the ratio to the old policy, so that its gradient is that of "
          "KL(student, reference); false: that of KL(reference, student); beta above 0 only");
    visit("epsilon", epsilon,
          "the ratio to the old policy is clipped to [1 - epsilon, 1 + epsilon_high]");
    visit("epsilon_high", epsilon_high,
          "upper clip range; null: epsilon; with loss_type: cispo the cap of the ratio itself");
    visit(
        "delta", delta,
        "two-sided clip: the ratio of samples worse than the others counts as at most this; null: "
        "no bound");
    visit(
        "loss_type", loss_type,
        "how token losses are averaged; cispo: as dapo, but the capped ratio is a weight of log p, "
        "so that no token loses its gradient");

    // Advantages.
    visit("advantage", advantage,
          "grpo: against the group's mean; rloo: against the others' mean; reinforce_plus_plus: "
          "against the batch's");
    visit("scale_rewards", scale_rewards,
          "what divides the advantage: the group's deviation, the batch's, nothing; advantage: "
          "grpo only");

    visit("multi_objective_aggregation", multi_objective_aggregation,
          "sum_then_normalize: rewards are summed with their weights and compared; "
          "normalize_then_sum: each is compared within the group, the weighted sum within the "
          "batch (GDPO)");

    // Steps on a rollout, and how old it may be.
    visit("num_mini_batches", num_mini_batches,
          "optimizer steps that share out the samples of a rollout");
    visit("num_iterations", num_iterations, "optimizer steps on the same samples");
    visit("importance_sampling_level", importance_sampling_level,
          "ratios of tokens, or of whole sequences (GSPO)");
    visit("old_logps", old_logps,
          "whose probabilities the ratio is to: trainer: the student's before the first step on "
          "the rollout; generator: those that the generator reports; auto: trainer with a "
          "sampling_correction, or with num_mini_batches: 1 and max_staleness: 0; else generator");
    visit(
        "sampling_correction", sampling_correction,
        "weights by trainer / generator probability, capped or masked; auto: sequence_mask with an "
        "external generator, else none");
    visit("importance_sampling_cap", importance_sampling_cap, "cap of sampling_correction");
    visit("importance_sampling_floor", importance_sampling_floor,
          "lower bound of sampling_correction: a weight below it becomes it, or with a mask 0; "
          "null: none");
    visit(
        "off_policy_mask_threshold", off_policy_mask_threshold,
        "a completion worse than the others is dropped when the mean over its tokens of log(drawn "
        "with / now) is above this; null: none is");
    visit(
        "max_staleness", max_staleness,
        "optimizer steps that the samples' weights may lie behind in the last step on them; above "
        "0 generation overlaps training; 0: drawn with the weights of the first of num_iterations "
        "* num_mini_batches steps");

    // These say which samples count, and what rewards and loss are made of besides.
    visit("max_resamples", max_resamples,
          "how often other prompts are drawn in the place of those whose completions score alike");
    visit(
        "mask_truncated_completions", mask_truncated_completions,
        "completions cut off at generation.max_new_tokens, and episodes that came to an end by "
        "environment.max_turns or max_tokens, have no loss; their rewards are compared with the "
        "others'");
    visit(
        "overlong_penalty_tokens", overlong_penalty_tokens,
        "the last tokens before generation.max_new_tokens, over which a completion's reward falls "
        "by up to 1; 0: none. Of an episode before environment.max_tokens: all tokens behind its "
        "prompt count, the environment's too");
    visit(
        "kl_in_reward", kl_in_reward,
        "beta weighs the k1 KL of the whole completion, taken from its reward, instead of a k3 KL "
        "in the loss");
    visit("entropy_coef", entropy_coef,
          "weight of the mean entropy of a token's distribution, which the loss is lessened by");
    visit("top_entropy_quantile", top_entropy_quantile,
          "share of a step's tokens, those of the highest entropy, that the policy gradient and "
          "entropy_coef are of, in [0, 1]; 1: all");
    visit("reference", reference, "the role of the KL's reference; beta above 0 only");
  }
  // kInvalidArgument naming the field.
  void validate() const;
  losses::PolicyOptions policy() const;
  // True if a sample whose advantage is 0 changes the gradient, or what is measured.
  bool all_samples_count() const {
    return beta > 0 || entropy_coef > 0 || picks_tokens() ||
           correction() != losses::SamplingCorrection::kNone;
  }
  bool decouples_rewards() const {
    return multi_objective_aggregation == MultiObjectiveAggregation::kNormalizeThenSum;
  }
  // True if tokens have a policy gradient by their entropy among all of a step.
  bool picks_tokens() const { return top_entropy_quantile < 1; }
  // Optimizer steps from one rollout to the next.
  int64_t steps_per_rollout() const { return num_iterations * num_mini_batches; }
  // old_logps with kAuto resolved.
  OldPolicy old_policy() const;
  bool ratio_to_generator() const { return old_policy() == OldPolicy::kGenerator; }
  // True if the old policy is computed by itself before the first step on a rollout: of one step
  // the loss has it.
  bool recomputes_old() const {
    return old_policy() == OldPolicy::kTrainer && num_mini_batches > 1;
  }
  // True if every ratio is 1.
  bool ratio_is_one() const { return !ratio_to_generator() && steps_per_rollout() == 1; }
  // Optimizer steps from one push of weights to the next: one where a round begins, once
  // `sync_every_steps` have passed.
  int64_t steps_between_pushes(int64_t sync_every_steps) const;
  // auto: none; a recipe has resolved it.
  losses::SamplingCorrection correction() const;
  // The part of max_staleness that generation may run ahead by. The oldest samples that do not run
  // ahead are drawn with weights that lie behind because not every step pushes them, and are
  // trained on for steps_per_rollout() steps; below 0 these alone are more than max_staleness.
  int64_t staleness_left(int64_t sync_every_steps) const;
};

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::CorrectionChoice> {
  using E = retort::recipes::CorrectionChoice;
  static constexpr std::array<std::pair<std::string_view, E>, 6> values{
      {{"auto", E::kAuto},
       {"none", E::kNone},
       {"token_truncate", E::kTokenTruncate},
       {"token_mask", E::kTokenMask},
       {"sequence_truncate", E::kSequenceTruncate},
       {"sequence_mask", E::kSequenceMask}}};
};
template <>
struct retort::EnumNames<retort::recipes::MultiObjectiveAggregation> {
  using E = retort::recipes::MultiObjectiveAggregation;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"sum_then_normalize", E::kSumThenNormalize}, {"normalize_then_sum", E::kNormalizeThenSum}}};
};
template <>
struct retort::EnumNames<retort::recipes::OldPolicy> {
  using E = retort::recipes::OldPolicy;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"auto", E::kAuto}, {"generator", E::kGenerator}, {"trainer", E::kTrainer}}};
};
template <>
struct retort::EnumNames<retort::recipes::AdvantageType> {
  using E = retort::recipes::AdvantageType;
  static constexpr std::array<std::pair<std::string_view, E>, 3> values{
      {{"grpo", E::kGrpo}, {"rloo", E::kRloo}, {"reinforce_plus_plus", E::kReinforcePlusPlus}}};
};
