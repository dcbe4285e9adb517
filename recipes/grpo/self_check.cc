#include "recipes/grpo/self_check.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "recipes/grpo/advantages.h"
#include "recipes/losses/policy.h"
#include "recipes/rollout/reward_check.h"
#include "recipes/rollout/self_check.h"
#include "recipes/rollout/turn_check.h"

namespace retort::recipes {
namespace {

// Returns the advantage of reward i in a group with rewards 0, 1, ..., n - 1, which is the whole
// batch. These have the mean (n - 1) / 2 and, with Bessel's correction, the variance
// n (n + 1) / 12. Decoupled rewards are normalised twice: the second time what is left has the
// deviation std / (std + 1e-4).
double expected_advantage(int64_t i, int64_t n, const GrpoOptions& options) {
  const double centred = static_cast<double>(i) - static_cast<double>(n - 1) / 2;
  const double deviation = std::sqrt(static_cast<double>(n * (n + 1)) / 12);
  if (options.decouples_rewards())
    return centred / (deviation + 1e-4) / (deviation / (deviation + 1e-4) + 1e-4);
  switch (options.advantage) {
    case AdvantageType::kRloo: return centred * static_cast<double>(n) / static_cast<double>(n - 1);
    case AdvantageType::kReinforcePlusPlus: return centred / (deviation + 1e-4);
    case AdvantageType::kGrpo: break;
  }
  return options.scale_rewards == losses::ScaleRewards::kNone ? centred
                                                              : centred / (deviation + 1e-4);
}

void check_advantages(SelfCheck& check, const Recipe& recipe) {
  const int64_t n = std::max<int64_t>(2, recipe.generation->num_generations);
  const at::Tensor rewards = at::arange(n, at::kDouble);
  const at::Tensor advantages =
      grpo_advantages({.totals = rewards, .objectives = rewards.unsqueeze(1), .weights = {1.0}}, n,
                      *recipe.grpo)
          .advantages;
  double error = 0;
  for (int64_t i = 0; i < n; ++i)
    error = std::max(
        error, std::abs(advantages[i].item<double>() - expected_advantage(i, n, *recipe.grpo)));
  check.check("advantages", error < 1e-5 * static_cast<double>(n),
              "of rewards 0 to " + std::to_string(n - 1) +
                  " in a group: " + scientific(advantages[0].item<double>()) + " to " +
                  scientific(advantages[n - 1].item<double>()) + "; difference from the formula " +
                  scientific(error));
}

// Returns what sampling_correction makes of a ratio of 1.
double corrected_one(const losses::PolicyOptions& options) {
  const double floor = options.importance_sampling_floor.value_or(0);
  if (options.importance_sampling_cap >= 1 && floor <= 1) return 1;
  switch (options.sampling_correction) {
    case losses::SamplingCorrection::kNone: return 1;
    case losses::SamplingCorrection::kTokenTruncate:
    case losses::SamplingCorrection::kSequenceTruncate:
      return floor > 1 ? floor : options.importance_sampling_cap;
    case losses::SamplingCorrection::kTokenMask:
    case losses::SamplingCorrection::kSequenceMask: break;
  }
  return 0;
}

// Checks the loss of one sample whose advantage is 1, where trainer, old policy and reference are
// one model: every ratio is 1, and the KL is 0.
void check_ratio(SelfCheck& check, const Recipe& recipe, const SampledLogProbs& log_p) {
  const c10::AutoGradMode grad(true);
  const int64_t tokens = log_p.trainer.numel();
  const at::Tensor policy = log_p.trainer.detach().clone().set_requires_grad(true);
  losses::PolicyInputs inputs{.policy_logps = policy,
                              .old_logps = log_p.trainer.detach(),
                              .reference_logps = {},
                              .generator_logps = {},
                              .sequence_of_row = at::zeros({tokens}, at::kLong),
                              .advantages = at::full({1}, 1.0f),
                              .token_advantages = {},
                              .num_sequences = 1};
  const losses::PolicyOptions options = recipe.grpo->policy();
  if (options.beta > 0) inputs.reference_logps = log_p.trainer.detach();
  if (options.sampling_correction != losses::SamplingCorrection::kNone)
    inputs.generator_logps = log_p.trainer.detach();

  const losses::PolicyResult result = losses::policy_loss(inputs, options);
  const double divisor = losses::policy_divisor(
      options.loss_type, {.sequences = 1, .tokens = tokens, .max_completion_tokens = tokens});
  const double loss = result.loss_sum.item<double>() / divisor;
  const double one = corrected_one(options);
  // With cispo the ratio is a weight of log p.
  const bool weighs = options.loss_type == losses::PolicyLossType::kCispo;
  const double expected = weighs ? -one * log_p.trainer.mean().item<double>() : -one;
  check.check("ratio at equal weights",
              std::abs(loss - expected) < 1e-5 * std::max(1.0, std::abs(expected)) &&
                  result.clip_region_sum == 0,
              "the loss of a sample with advantage 1 is " + scientific(loss) + ", must be " +
                  scientific(expected) + "; " + scientific(result.clip_region_sum) +
                  " ratios clipped, must be 0");
  const bool high = options.importance_sampling_floor.value_or(0) > 1;
  check.check(high ? "importance_sampling_floor" : "importance_sampling_cap", one > 0,
              "a ratio of 1 counts " + scientific(one) + " times" +
                  (one > 0 ? ""
                   : high  ? ": above 1 the floor masks every token; lower it"
                           : ": below 1 the cap masks every token; raise it"));

  result.loss_sum.backward();
  const double steepest = policy.grad().max().item<double>();
  check.check("direction", steepest < 0,
              "d loss / d log p of that sample's tokens: at most " + scientific(steepest) +
                  ", must be below 0");
}

}  // namespace

void check_grpo_numbers(SelfCheck& check, const Recipe& recipe) {
  const CheckedPrompts prompts = check_prompts(check, recipe);
  check_turns(check, recipe);
  check_rewards(check, recipe, prompts.first, prompts.greedy_ids);
  check_advantages(check, recipe);
  check_ratio(check, recipe, check_sampling(check, recipe, prompts.first.at(0)));

  if (recipe.grpo->beta == 0) return;
  const std::string& role = recipe.grpo->reference;
  if (is_elsewhere(check, recipe, role)) return;
  check_vocabularies(check, models::load_model_without_chat(recipe.roles.at(role).model, "float32"),
                     role);
}

}  // namespace retort::recipes
