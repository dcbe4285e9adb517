// Losses over pairs of completions (DPO and its family), from summed log-probabilities. Formulas:
// docs/losses.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/options.h"

namespace retort::losses {

enum class PreferenceLoss {
  kSigmoid,
  kHinge,
  kIpo,
  kRobust,
  kCdpo,
  kSigmoidNorm,
  kSimpo,
  kOrpo,
  kApoZero,
  kApoDown,
  kExoPair,
  kNcaPair,
  kBcoPair,
  kSppoHard,
  kAot,
  kAotUnpaired,
  kDiscopop,
  kSft,
};

// How a log-ratio u = log pi - log pi_ref becomes a completion's score (f-DPO, Wang et al. 2023,
// arXiv 2309.16240: f'(e^u)), as TRL 1.16's DPOTrainer has them:
//   reverse_kl u, forward_kl 1 - e^-u, js_divergence log 2 + log sigmoid(u),
//   alpha_divergence (e^((alpha - 1) u) - 1) / (alpha - 1)
enum class FDivergence { kReverseKl, kForwardKl, kJsDivergence, kAlphaDivergence };

struct PreferenceOptions {
  std::vector<PreferenceLoss> loss_type{PreferenceLoss::kSigmoid};  // their weighted sum
  // one for each loss_type, positive; empty: all 1
  std::vector<double> loss_weights;
  // of every loss (orpo: the weight of the odds-ratio term), and of the rewards in the metrics
  double beta = 0.1;
  // robust, aot, aot_unpaired: in [0, 0.5); cdpo, exo_pair: in (0, 0.5); no other loss reads it
  double label_smoothing = 0.0;
  double simpo_gamma = 0.5;    // simpo: the target margin
  double discopop_tau = 0.05;  // discopop: how sharply it changes from one form to the other
  // of losses of the difference of two scores, and of no other
  FDivergence f_divergence_type = FDivergence::kReverseKl;
  double f_alpha_divergence_coef = 0.5;  // alpha_divergence: alpha; 1 is reverse_kl
  // WPO (arXiv 2406.11827): a pair's loss times PreferenceInputs::pair_weights; not of aot and
  // aot_unpaired, nor of what is no loss of a pair (sft, orpo), nor of simpo
  bool use_weighting = false;
  // LD-DPO (arXiv 2409.06411): the tokens of the longer completion beyond the shorter one's length
  // count this much, in [0, 1], in the sums of policy and reference (losses/pair_weights.h); null:
  // as the others. Not of simpo and orpo
  std::optional<double> ld_alpha;

  // kInvalidArgument: ranges, an empty or repeated loss_type, loss_weights of another length, and
  // what would have no effect: label_smoothing, simpo_gamma, discopop_tau and
  // f_alpha_divergence_coef without what reads them; f_divergence_type, use_weighting and ld_alpha
  // with a loss that has none. cdpo and exo_pair without label_smoothing: the one is sigmoid then,
  // the other infinite.
  void validate() const;
};

// True if any of the losses compares with a reference model; simpo, orpo and sft alone do not.
bool needs_reference(const PreferenceOptions& options);
// True if any of the losses is (or contains) cross-entropy on the chosen completions: sft, orpo.
// Then chosen_nll_sum counts.
bool uses_chosen_nll(const PreferenceOptions& options);
// True if any of the losses compares a pair with others of the global batch: aot, aot_unpaired.
bool needs_counterparts(const PreferenceOptions& options);

// P pairs. Sums over a completion's tokens of log p(token), temperature 1.
struct PreferenceInputs {
  at::Tensor policy_chosen, policy_rejected;        // [P] float32, may require grad
  at::Tensor reference_chosen, reference_rejected;  // [P] float32; undefined unless needs_reference
  at::Tensor chosen_tokens, rejected_tokens;        // [P] float32: how many tokens each sum has
  // [3, P] float64, undefined unless needs_counterparts: the columns of these pairs of what
  // counterparts() gives for all pairs of the global batch (counterparts.h)
  at::Tensor counterparts = {};
  // [P] float32, undefined unless use_weighting: pair_weights() of losses/pair_weights.h
  at::Tensor pair_weights = {};
  // [P] float32, undefined unless ld_alpha and uses_chosen_nll: policy_chosen with all tokens
  // alike, which cross-entropy is of; may require grad
  at::Tensor policy_chosen_whole = {};
};

// Sums, so that micro-batches and ranks add up: the loss of a step is
//     loss_sum / (pairs of the global batch) + chosen_nll_sum / (chosen tokens of the global batch)
// which is TRL's value when the global batch is one batch of TRL. Both are scalar float32 with
// autograd, weighted by loss_weights.
struct PreferenceResult {
  at::Tensor loss_sum;  // every term that is a mean over pairs
  // -log p over the chosen tokens, for sft and orpo's first term (TRL's ORPOTrainer adds the
  // prompt's tokens); zero unless uses_chosen_nll.
  at::Tensor chosen_nll_sum;
  int64_t count = 0;  // P
  // their sum; what chosen_nll_sum is divided by, once summed over the global batch
  double chosen_tokens = 0;

  // Metrics, as sums over pairs. With a reference: reward = beta * (log pi - log pi_ref), logps are
  // sums over tokens (TRL's DPOTrainer). Without: reward = beta * (mean log-probability of a
  // token), logps are those means (TRL's CPO and ORPO trainers).
  double rewards_chosen_sum = 0;
  double rewards_rejected_sum = 0;
  double rewards_margins_sum = 0;
  // pairs whose chosen reward is strictly larger: equal completions do not count
  double rewards_accuracies_sum = 0;
  // With ld_alpha: of the weighted sums.
  double logps_chosen_sum = 0;
  double logps_rejected_sum = 0;
};

// The loss of P pairs as sums, with its gradient and metrics.
//
// Arithmetic: values and gradients are formed in one pass in float64, pair by pair, without
//   overflow on the way. orpo takes a mean log-probability above -1e-7 as -1e-7 (its odds are
//   infinite at 0). ipo and sigmoid_norm count a completion without tokens as one token, as TRL
//   does. NaN in gives NaN out: the trainer reports it. discopop is infinite where a margin is
//   far below 0 and discopop_tau above 1. forward_kl and alpha_divergence grow exponentially in a
//   log-ratio; the exponent of the latter stops at 80, as TRL's does, where its slope is 0.
// Gradient: differentiable once; aot and aot_unpaired take the counterparts of a step as they are,
//   as sorting does. P = 0 gives zeros that still reach the policy's sums.
// Errors: kInvalidArgument for what options.validate() refuses, shapes and dtypes, a reference,
//   counterparts, pair_weights or policy_chosen_whole that are missing or not used, a completion
//   without tokens with simpo and orpo (TRL: NaN).
// Collectives: none.
// Devices: every vector on any; each is read with a copy to the host, where it is computed. The
//   scalars are on policy_chosen's.
// Threads: any.
PreferenceResult preference_loss(const PreferenceInputs& inputs, const PreferenceOptions& options);

}  // namespace retort::losses

template <>
struct retort::EnumNames<retort::losses::PreferenceLoss> {
  using E = retort::losses::PreferenceLoss;
  static constexpr std::array<std::pair<std::string_view, E>, 18> values{
      {{"sigmoid", E::kSigmoid},
       {"hinge", E::kHinge},
       {"ipo", E::kIpo},
       {"robust", E::kRobust},
       {"cdpo", E::kCdpo},
       {"sigmoid_norm", E::kSigmoidNorm},
       {"simpo", E::kSimpo},
       {"orpo", E::kOrpo},
       {"apo_zero", E::kApoZero},
       {"apo_down", E::kApoDown},
       {"exo_pair", E::kExoPair},
       {"nca_pair", E::kNcaPair},
       {"bco_pair", E::kBcoPair},
       {"sppo_hard", E::kSppoHard},
       {"aot", E::kAot},
       {"aot_unpaired", E::kAotUnpaired},
       {"discopop", E::kDiscopop},
       {"sft", E::kSft}}};
};
template <>
struct retort::EnumNames<retort::losses::FDivergence> {
  using E = retort::losses::FDivergence;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"reverse_kl", E::kReverseKl},
       {"forward_kl", E::kForwardKl},
       {"js_divergence", E::kJsDivergence},
       {"alpha_divergence", E::kAlphaDivergence}}};
};
