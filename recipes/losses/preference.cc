#include "recipes/losses/preference.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "recipes/losses/detail/formed_gradient.h"
#include "recipes/losses/detail/vector_arguments.h"

namespace retort::losses {
namespace {

using Loss = PreferenceLoss;

constexpr double kLargestMeanLogProb = -1e-7;  // orpo: the odds are infinite at 0

bool contains(const PreferenceOptions& options, Loss loss) {
  return std::find(options.loss_type.begin(), options.loss_type.end(), loss) !=
         options.loss_type.end();
}

bool reference_free(Loss loss) {
  return loss == Loss::kSimpo || loss == Loss::kOrpo || loss == Loss::kSft;
}

void require(bool ok, const char* field, const std::string& expected, double value) {
  if (!ok)
    throw Error(ErrorCode::kInvalidArgument, std::string(field) + " " + expected)
        .with(field, value);
}

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }
double sigmoid_slope(double x) { return sigmoid(x) * sigmoid(-x); }

// One pair's numbers.
struct Pair {
  double chosen_ratio, rejected_ratio;  // log pi - log pi_ref, sums over tokens
  double chosen, rejected;              // log pi, sums over tokens
  double chosen_tokens, rejected_tokens;
};

// A term's value and its derivatives with respect to the policy's two sums.
struct Term {
  double value = 0, d_chosen = 0, d_rejected = 0;
};

// A function of x = scale_chosen * chosen - scale_rejected * rejected + constant, from its value
// and slope at x.
Term of_difference(double value, double slope, double scale_chosen, double scale_rejected) {
  return {value, slope * scale_chosen, -slope * scale_rejected};
}

// log odds = l - log(1 - e^l) of a mean log-probability, and its derivative 1 / (1 - e^l).
struct LogOdds {
  explicit LogOdds(double mean_log_prob) {
    // NaN stays
    const double l = mean_log_prob > kLargestMeanLogProb ? kLargestMeanLogProb : mean_log_prob;
    const double log1mexp = l < -M_LN2 ? std::log1p(-std::exp(l)) : std::log(-std::expm1(l));
    value = l - log1mexp;
    slope = -1 / std::expm1(l);
  }
  double value, slope;
};

Term orpo_term(const Pair& p, double beta) {
  const LogOdds chosen(p.chosen / p.chosen_tokens), rejected(p.rejected / p.rejected_tokens);
  const double x = chosen.value - rejected.value, slope = -beta * sigmoid(-x);
  return of_difference(-beta * log_sigmoid(x), slope, chosen.slope / p.chosen_tokens,
                       rejected.slope / p.rejected_tokens);
}

Term term_of(Loss loss, const Pair& p, const PreferenceOptions& options) {
  const double beta = options.beta, smoothing = options.label_smoothing;
  const double per_chosen = 1 / std::max(p.chosen_tokens, 1.0),
               per_rejected = 1 / std::max(p.rejected_tokens, 1.0);
  const double x = beta * (p.chosen_ratio - p.rejected_ratio);
  switch (loss) {
    case Loss::kSigmoid: return of_difference(-log_sigmoid(x), -sigmoid(-x), beta, beta);
    // 0 * x: NaN stays
    case Loss::kHinge: return of_difference(x < 1 ? 1 - x : 0 * x, x < 1 ? -1 : 0, beta, beta);
    case Loss::kIpo: {
      const double error =
          p.chosen_ratio * per_chosen - p.rejected_ratio * per_rejected - 1 / (2 * beta);
      return of_difference(error * error, 2 * error, per_chosen, per_rejected);
    }
    case Loss::kRobust: {
      const double scale = 1 / (1 - 2 * smoothing);
      return of_difference(
          scale * (-(1 - smoothing) * log_sigmoid(x) + smoothing * log_sigmoid(-x)),
          scale * (-(1 - smoothing) * sigmoid(-x) - smoothing * sigmoid(x)), beta, beta);
    }
    case Loss::kCdpo:
      return of_difference(-(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x),
                           -(1 - smoothing) * sigmoid(-x) + smoothing * sigmoid(x), beta, beta);
    case Loss::kSigmoidNorm: {
      const double y = beta * (p.chosen_ratio * per_chosen - p.rejected_ratio * per_rejected);
      return of_difference(-log_sigmoid(y), -sigmoid(-y), beta * per_chosen, beta * per_rejected);
    }
    case Loss::kSimpo: {
      const double y =
          beta * (p.chosen * per_chosen - p.rejected * per_rejected) - options.simpo_gamma;
      return of_difference(-log_sigmoid(y), -sigmoid(-y), beta * per_chosen, beta * per_rejected);
    }
    case Loss::kOrpo: return orpo_term(p, beta);
    case Loss::kApoZero: {
      const double c = beta * p.chosen_ratio, r = beta * p.rejected_ratio;
      return {sigmoid(-c) + sigmoid(r), -beta * sigmoid_slope(c), beta * sigmoid_slope(r)};
    }
    case Loss::kApoDown: {
      const double c = beta * p.chosen_ratio;
      return {sigmoid(c) + sigmoid(-x), beta * (sigmoid_slope(c) - sigmoid_slope(x)),
              beta * sigmoid_slope(x)};
    }
    case Loss::kSft: return {};  // chosen_nll_sum
  }
  RETORT_CHECK(false) << "a loss without a formula";
  return {};
}

// The inputs, checked.
struct Columns {
  Columns(const PreferenceInputs& in, const PreferenceOptions& options)
      : with_reference(needs_reference(options)) {
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
    chosen = detail::FloatVector(in.policy_chosen);
    rejected = detail::FloatVector(in.policy_rejected);
    reference_chosen = detail::FloatVector(in.reference_chosen);
    reference_rejected = detail::FloatVector(in.reference_rejected);
    chosen_tokens = detail::FloatVector(in.chosen_tokens);
    rejected_tokens = detail::FloatVector(in.rejected_tokens);
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
    return {chosen[i] - reference_chosen[i],
            rejected[i] - reference_rejected[i],
            chosen[i],
            rejected[i],
            chosen_tokens[i],
            rejected_tokens[i]};
  }

  bool with_reference;
  int64_t pairs = 0;
  detail::FloatVector chosen, rejected, reference_chosen, reference_rejected, chosen_tokens,
      rejected_tokens;
};

void add_metrics(const Pair& p, bool with_reference, double beta, PreferenceResult& result) {
  const double per_chosen = with_reference ? 1 : 1 / std::max(p.chosen_tokens, 1.0);
  const double per_rejected = with_reference ? 1 : 1 / std::max(p.rejected_tokens, 1.0);
  const double chosen = beta * p.chosen_ratio * per_chosen,
               rejected = beta * p.rejected_ratio * per_rejected;
  result.rewards_chosen_sum += chosen;
  result.rewards_rejected_sum += rejected;
  result.rewards_margins_sum += chosen - rejected;
  result.rewards_accuracies_sum += chosen > rejected;
  result.logps_chosen_sum += p.chosen * per_chosen;
  result.logps_rejected_sum += p.rejected * per_rejected;
}

}  // namespace

bool needs_reference(const PreferenceOptions& options) {
  return !std::all_of(options.loss_type.begin(), options.loss_type.end(), reference_free);
}

bool uses_chosen_nll(const PreferenceOptions& options) {
  return contains(options, Loss::kSft) || contains(options, Loss::kOrpo);
}

void PreferenceOptions::validate() const {
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
    require(weight > 0 && std::isfinite(weight), "loss_weights",
            "must be positive: leave out a loss that shall not count", weight);
  require(beta > 0 && std::isfinite(beta), "beta", "must be positive and finite", beta);
  const bool robust = contains(*this, Loss::kRobust), cdpo = contains(*this, Loss::kCdpo);
  require(label_smoothing == 0 || robust || cdpo, "label_smoothing",
          "has no effect: only loss_type robust and cdpo read it (cdpo is sigmoid with label "
          "smoothing)",
          label_smoothing);
  require(label_smoothing >= 0 && label_smoothing < 0.5, "label_smoothing",
          "must be in [0, 0.5), the share of pairs whose labels are swapped", label_smoothing);
  require(!cdpo || label_smoothing > 0, "label_smoothing",
          "must be positive with loss_type cdpo, which is sigmoid without it", label_smoothing);
  require(simpo_gamma >= 0 && std::isfinite(simpo_gamma), "simpo_gamma",
          "must be finite and not negative", simpo_gamma);
  require(simpo_gamma == PreferenceOptions().simpo_gamma || contains(*this, Loss::kSimpo),
          "simpo_gamma", "has no effect: only loss_type simpo reads it", simpo_gamma);
}

PreferenceResult preference_loss(const PreferenceInputs& inputs, const PreferenceOptions& options) {
  options.validate();
  const Columns columns(inputs, options);
  const at::Tensor d_chosen = at::empty({columns.pairs}, at::kFloat),
                   d_rejected = at::empty({columns.pairs}, at::kFloat);
  const at::Tensor d_nll = at::empty({columns.pairs}, at::kFloat);
  float *to_chosen = d_chosen.data_ptr<float>(), *to_rejected = d_rejected.data_ptr<float>(),
        *to_nll = d_nll.data_ptr<float>();

  PreferenceResult result;
  result.count = columns.pairs;
  double loss = 0, nll = 0;
  for (int64_t i = 0; i < columns.pairs; ++i) {
    const Pair p = columns.pair(i);
    Term sum;
    double nll_weight = 0;
    for (size_t k = 0; k < options.loss_type.size(); ++k) {
      const Loss type = options.loss_type[k];
      const double weight = options.loss_weights.empty() ? 1.0 : options.loss_weights[k];
      const Term term = term_of(type, p, options);
      sum.value += weight * term.value;
      sum.d_chosen += weight * term.d_chosen;
      sum.d_rejected += weight * term.d_rejected;
      if (type == Loss::kSft || type == Loss::kOrpo) nll_weight += weight;
    }
    loss += sum.value;
    nll -= nll_weight * p.chosen;
    to_chosen[i] = static_cast<float>(sum.d_chosen);
    to_rejected[i] = static_cast<float>(sum.d_rejected);
    to_nll[i] = static_cast<float>(-nll_weight);
    result.chosen_tokens += p.chosen_tokens;
    add_metrics(p, columns.with_reference, options.beta, result);
  }
  result.loss_sum = detail::scalar_with_gradients(
      loss, {{inputs.policy_chosen, d_chosen}, {inputs.policy_rejected, d_rejected}});
  result.chosen_nll_sum = detail::scalar_with_gradients(nll, {{inputs.policy_chosen, d_nll}});
  return result;
}

}  // namespace retort::losses
