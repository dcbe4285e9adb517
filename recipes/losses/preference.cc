#include "recipes/losses/preference.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "recipes/losses/detail/formed_gradient.h"
#include "recipes/losses/detail/option_check.h"
#include "recipes/losses/detail/preference_terms.h"
#include "recipes/losses/detail/vector_arguments.h"

namespace retort::losses {
namespace {

using detail::check_option;
using detail::Pair;
using detail::per_token;
using detail::Term;
using Loss = PreferenceLoss;

bool contains(const PreferenceOptions& options, Loss loss) {
  return std::find(options.loss_type.begin(), options.loss_type.end(), loss) !=
         options.loss_type.end();
}

bool reference_free(Loss loss) {
  return loss == Loss::kSimpo || loss == Loss::kOrpo || loss == Loss::kSft;
}

// True of losses that are functions of the difference of two completions' scores: f-DPO leaves the
// same constant in both scores, and only there it cancels. Cross-entropy has no scores, so it may
// stand beside them.
bool takes_divergence(Loss loss) {
  switch (loss) {
    case Loss::kSigmoid:
    case Loss::kSigmoidNorm:
    case Loss::kHinge:
    case Loss::kIpo:
    case Loss::kRobust:
    case Loss::kCdpo:
    case Loss::kExoPair:
    case Loss::kDiscopop:
    case Loss::kSft: return true;
    default: return false;
  }
}

bool reads_smoothing(Loss loss) {
  return loss == Loss::kRobust || loss == Loss::kCdpo || loss == Loss::kExoPair ||
         loss == Loss::kAot || loss == Loss::kAotUnpaired;
}

// The weighted sum of a pair's terms with its derivatives by the log-ratios, and the weight of its
// chosen completion's cross-entropy.
struct PairLoss {
  Term sum;
  double nll_weight = 0;
};
PairLoss pair_loss(const Pair& p, double pair_weight, const PreferenceOptions& options) {
  // f-DPO: the losses see scores in the place of log-ratios, and the scores' slopes bring their
  // derivatives back to the log-ratios.
  const detail::Score chosen = detail::score_of(p.chosen_ratio, options);
  const detail::Score rejected = detail::score_of(p.rejected_ratio, options);
  Pair scored = p;
  scored.chosen_ratio = chosen.value;
  scored.rejected_ratio = rejected.value;

  PairLoss result;
  for (size_t k = 0; k < options.loss_type.size(); ++k) {
    const Loss type = options.loss_type[k];
    const double weight = options.loss_weights.empty() ? 1.0 : options.loss_weights[k];
    const Term term = detail::term_of(type, scored, options);
    result.sum.value += weight * term.value;
    result.sum.d_chosen += weight * term.d_chosen;
    result.sum.d_rejected += weight * term.d_rejected;
    if (type == Loss::kSft || type == Loss::kOrpo) result.nll_weight += weight;
  }
  result.sum.value *= pair_weight;
  result.sum.d_chosen *= pair_weight * chosen.slope;
  result.sum.d_rejected *= pair_weight * rejected.slope;
  return result;
}

// The inputs as numbers, after all checks of their shapes and of what the options need.
struct Columns {
  Columns(const PreferenceInputs& in, const PreferenceOptions& options)
      : with_reference(needs_reference(options)) {
    check_shapes(in);
    chosen = detail::FloatVector(in.policy_chosen);
    rejected = detail::FloatVector(in.policy_rejected);
    reference_chosen = detail::FloatVector(in.reference_chosen);
    reference_rejected = detail::FloatVector(in.reference_rejected);
    chosen_tokens = detail::FloatVector(in.chosen_tokens);
    rejected_tokens = detail::FloatVector(in.rejected_tokens);
    check_counterparts(in, options);
    check_given(in.pair_weights, options.use_weighting, "pair_weights", "use_weighting");
    pair_weights = detail::FloatVector(in.pair_weights);
    check_given(in.policy_chosen_whole, options.ld_alpha && uses_chosen_nll(options),
                "policy_chosen_whole", "ld_alpha beside cross-entropy");
    whole_chosen = in.policy_chosen_whole.defined() ? in.policy_chosen_whole : in.policy_chosen;
    whole = detail::FloatVector(whole_chosen);
    check_token_counts(options);
  }

  void check_shapes(const PreferenceInputs& in) {
    if (!in.policy_chosen.defined() || in.policy_chosen.dim() != 1)
      throw Error(ErrorCode::kInvalidArgument,
                  "policy_chosen must be [P] float32, one sum for each pair");
    pairs = in.policy_chosen.size(0);
    detail::require_vector(in.policy_chosen, "policy_chosen", pairs);
    detail::require_vector(in.policy_rejected, "policy_rejected", pairs);
    detail::require_vector(in.chosen_tokens, "chosen_tokens", pairs);
    detail::require_vector(in.rejected_tokens, "rejected_tokens", pairs);
    if (with_reference) {
      detail::require_vector(in.reference_chosen, "reference_chosen", pairs);
      detail::require_vector(in.reference_rejected, "reference_rejected", pairs);
    } else if (in.reference_chosen.defined() || in.reference_rejected.defined()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "reference log-probabilities are given, but none of the losses reads them: leave "
                  "them undefined");
    }
  }

  void check_counterparts(const PreferenceInputs& in, const PreferenceOptions& options) {
    const bool needed = needs_counterparts(options);
    if (needed != in.counterparts.defined())
      throw Error(ErrorCode::kInvalidArgument,
                  needed ? "aot and aot_unpaired compare with other pairs of the global batch: "
                           "counterparts is missing"
                         : "counterparts are given, but none of the losses reads them: leave them "
                           "undefined");
    if (!needed) return;
    if (in.counterparts.dim() != 2 || in.counterparts.size(0) != 3 ||
        in.counterparts.size(1) != pairs || in.counterparts.scalar_type() != at::kDouble)
      throw Error(ErrorCode::kInvalidArgument,
                  "counterparts must be [3, P] float64, what counterparts() gives for these pairs")
          .with("pairs", pairs);
    counterparts = in.counterparts.to(at::kCPU).contiguous();
  }

  // Refuses a vector that is missing though `option` reads it, or is given though `option` is off.
  void check_given(const at::Tensor& vector, bool needed, const char* name,
                   const char* option) const {
    if (needed != vector.defined())
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(name) + (needed ? " is missing, which " : " is given, which only ") +
                      option + " reads");
    if (needed) detail::require_vector(vector, name, pairs);
  }

  void check_token_counts(const PreferenceOptions& options) const {
    const double fewest = contains(options, Loss::kSimpo) || contains(options, Loss::kOrpo) ? 1 : 0;
    for (int64_t i = 0; i < pairs; ++i)
      if (!(chosen_tokens[i] >= fewest && rejected_tokens[i] >= fewest))
        throw Error(ErrorCode::kInvalidArgument,
                    fewest > 0 ? "simpo and orpo divide by the number of completion tokens: leave "
                                 "out pairs with an empty completion"
                               : "token counts must not be negative")
            .with("pair", i)
            .with("chosen_tokens", chosen_tokens[i])
            .with("rejected_tokens", rejected_tokens[i]);
  }

  Pair pair(int64_t i) const {
    Pair pair{chosen[i] - reference_chosen[i],
              rejected[i] - reference_rejected[i],
              chosen[i],
              rejected[i],
              chosen_tokens[i],
              rejected_tokens[i]};
    if (!counterparts.defined()) return pair;
    const double* column = counterparts.const_data_ptr<double>() + i;
    pair.margin_counterpart = column[0];
    pair.chosen_counterpart = column[pairs];
    pair.rejected_counterpart = column[2 * pairs];
    return pair;
  }

  bool with_reference;
  int64_t pairs = 0;
  detail::FloatVector chosen, rejected;
  detail::FloatVector reference_chosen, reference_rejected;
  detail::FloatVector chosen_tokens, rejected_tokens;
  detail::FloatVector pair_weights, whole;
  at::Tensor whole_chosen;  // the sums that cross-entropy takes
  at::Tensor counterparts;  // [3, P] float64 on the host, or undefined
};

void add_metrics(const Pair& p, bool with_reference, double beta, PreferenceResult& result) {
  const double per_chosen = with_reference ? 1 : per_token(p.chosen_tokens);
  const double per_rejected = with_reference ? 1 : per_token(p.rejected_tokens);
  const double chosen = beta * p.chosen_ratio * per_chosen;
  const double rejected = beta * p.rejected_ratio * per_rejected;
  result.rewards_chosen_sum += chosen;
  result.rewards_rejected_sum += rejected;
  result.rewards_margins_sum += chosen - rejected;
  result.rewards_accuracies_sum += chosen > rejected;
  result.logps_chosen_sum += p.chosen * per_chosen;
  result.logps_rejected_sum += p.rejected * per_rejected;
}

// Refuses `option` of any of the losses that `takes` does not have.
void check_each_loss(const PreferenceOptions& options, const char* option, const std::string& why,
                     bool (*takes)(Loss)) {
  for (const Loss loss : options.loss_type)
    if (!takes(loss))
      throw Error(ErrorCode::kInvalidArgument, std::string(option) +
                                                   " does not go with loss_type " +
                                                   std::string(enum_name(loss)) + ": " + why)
          .with("loss_type", enum_name(loss));
}

// With cross-entropy as the only loss an option of pairs would change nothing, so it is refused.
void check_compares(const PreferenceOptions& options, const char* option) {
  if (!needs_reference(options))
    throw Error(
        ErrorCode::kInvalidArgument,
        std::string(option) + " has no effect: no loss_type compares completions with a reference");
}

void check_divergence(const PreferenceOptions& options) {
  const double alpha = options.f_alpha_divergence_coef;
  check_option(std::isfinite(alpha), "f_alpha_divergence_coef", "must be finite", alpha);
  check_option(alpha == PreferenceOptions().f_alpha_divergence_coef ||
                   options.f_divergence_type == FDivergence::kAlphaDivergence,
               "f_alpha_divergence_coef",
               "has no effect: only f_divergence_type alpha_divergence reads it", alpha);
  if (options.f_divergence_type == FDivergence::kReverseKl) return;
  check_each_loss(
      options, "f_divergence_type",
      "it is for losses of the difference of two rewards (sigmoid, sigmoid_norm, hinge, "
      "ipo, robust, cdpo, exo_pair, discopop), beside which sft may stand",
      takes_divergence);
  check_compares(options, "f_divergence_type");
}

// Checks the options that weigh pairs, or tokens of pairs.
void check_pair_options(const PreferenceOptions& options) {
  const auto sums_pairs = [](Loss loss) {
    return !reference_free(loss) && loss != Loss::kAot && loss != Loss::kAotUnpaired;
  };
  const auto sums_tokens = [](Loss loss) { return !reference_free(loss) || loss == Loss::kSft; };
  if (options.use_weighting)
    check_each_loss(options, "use_weighting",
                    "it weighs the loss of a pair, of its two completions and their reference",
                    sums_pairs);
  if (!options.ld_alpha) return;
  check_option(*options.ld_alpha >= 0 && *options.ld_alpha <= 1, "ld_alpha",
               "must be in [0, 1], what a token beyond the shorter completion's length counts",
               *options.ld_alpha);
  check_each_loss(options, "ld_alpha",
                  "it is for losses that sum over the tokens of both completions", sums_tokens);
  check_compares(options, "ld_alpha");
}

}  // namespace

bool needs_reference(const PreferenceOptions& options) {
  return !std::all_of(options.loss_type.begin(), options.loss_type.end(), reference_free);
}

bool uses_chosen_nll(const PreferenceOptions& options) {
  return contains(options, Loss::kSft) || contains(options, Loss::kOrpo);
}

bool needs_counterparts(const PreferenceOptions& options) {
  return contains(options, Loss::kAot) || contains(options, Loss::kAotUnpaired);
}

void PreferenceOptions::validate() const {
  // Each loss is named once, and has a positive weight if weights are given.
  if (loss_type.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "loss_type must name at least one of " + enum_choices<Loss>());
  for (size_t i = 0; i < loss_type.size(); ++i)
    if (std::find(loss_type.begin(), loss_type.begin() + i, loss_type[i]) != loss_type.begin() + i)
      throw Error(ErrorCode::kInvalidArgument,
                  "loss_type names a loss twice: give it once, with its weight in loss_weights")
          .with("loss_type", enum_name(loss_type[i]));
  if (!loss_weights.empty() && loss_weights.size() != loss_type.size())
    throw Error(ErrorCode::kInvalidArgument, "loss_weights must have one weight for each loss_type")
        .with("loss_type", loss_type.size())
        .with("loss_weights", loss_weights.size());
  for (double weight : loss_weights)
    check_option(weight > 0 && std::isfinite(weight), "loss_weights",
                 "must be positive: leave out a loss that shall not count", weight);
  check_option(beta > 0 && std::isfinite(beta), "beta", "must be positive and finite", beta);

  // label_smoothing: some read it, and two of them are another loss or none without it.
  const bool cdpo = contains(*this, Loss::kCdpo);
  const bool exo_pair = contains(*this, Loss::kExoPair);
  check_option(
      label_smoothing == 0 || std::any_of(loss_type.begin(), loss_type.end(), reads_smoothing),
      "label_smoothing",
      "has no effect: only loss_type robust, cdpo, exo_pair, aot and aot_unpaired read it (cdpo is "
      "sigmoid with label smoothing)",
      label_smoothing);
  check_option(label_smoothing >= 0 && label_smoothing < 0.5, "label_smoothing",
               "must be in [0, 0.5), the share of pairs whose labels are swapped", label_smoothing);
  check_option(!cdpo || label_smoothing > 0, "label_smoothing",
               "must be positive with loss_type cdpo, which is sigmoid without it",
               label_smoothing);
  check_option(!exo_pair || label_smoothing > 0, "label_smoothing",
               "must be positive with loss_type exo_pair, which is infinite without it",
               label_smoothing);

  check_option(simpo_gamma >= 0 && std::isfinite(simpo_gamma), "simpo_gamma",
               "must be finite and not negative", simpo_gamma);
  check_option(simpo_gamma == PreferenceOptions().simpo_gamma || contains(*this, Loss::kSimpo),
               "simpo_gamma", "has no effect: only loss_type simpo reads it", simpo_gamma);
  check_option(discopop_tau > 0 && std::isfinite(discopop_tau), "discopop_tau",
               "must be positive and finite", discopop_tau);
  check_option(discopop_tau == PreferenceOptions().discopop_tau || contains(*this, Loss::kDiscopop),
               "discopop_tau", "has no effect: only loss_type discopop reads it", discopop_tau);
  check_divergence(*this);
  check_pair_options(*this);
}

PreferenceResult preference_loss(const PreferenceInputs& inputs, const PreferenceOptions& options) {
  options.validate();
  const Columns columns(inputs, options);
  const at::Tensor d_chosen = at::empty({columns.pairs}, at::kFloat);
  const at::Tensor d_rejected = at::empty({columns.pairs}, at::kFloat);
  const at::Tensor d_nll = at::empty({columns.pairs}, at::kFloat);
  float* to_chosen = d_chosen.data_ptr<float>();
  float* to_rejected = d_rejected.data_ptr<float>();
  float* to_nll = d_nll.data_ptr<float>();

  // Values are sums over the pairs; the derivatives belong to one pair each.
  PreferenceResult result;
  result.count = columns.pairs;
  double loss = 0;
  double nll = 0;
  for (int64_t i = 0; i < columns.pairs; ++i) {
    const Pair p = columns.pair(i);
    const double pair_weight = options.use_weighting ? columns.pair_weights[i] : 1;
    const PairLoss of_pair = pair_loss(p, pair_weight, options);
    loss += of_pair.sum.value;
    nll -= of_pair.nll_weight * columns.whole[i];
    to_chosen[i] = static_cast<float>(of_pair.sum.d_chosen);
    to_rejected[i] = static_cast<float>(of_pair.sum.d_rejected);
    to_nll[i] = static_cast<float>(-of_pair.nll_weight);
    result.chosen_tokens += p.chosen_tokens;
    add_metrics(p, columns.with_reference, options.beta, result);
  }

  // The result is two scalars, because the caller divides the terms by pairs and the cross-entropy
  // by tokens.
  result.loss_sum = detail::scalar_with_gradients(
      loss, {{inputs.policy_chosen, d_chosen}, {inputs.policy_rejected, d_rejected}});
  result.chosen_nll_sum = detail::scalar_with_gradients(nll, {{columns.whole_chosen, d_nll}});
  return result;
}

}  // namespace retort::losses
