#include "recipes/losses/detail/preference_terms.h"

#include <cmath>

#include "base/error.h"

namespace retort::losses::detail {
namespace {

using Loss = PreferenceLoss;

constexpr double kLargestMeanLogProb = -1e-7;  // orpo: the odds are infinite at 0

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }
double sigmoid_slope(double x) { return sigmoid(x) * sigmoid(-x); }

// A function of x = scale_chosen * chosen - scale_rejected * rejected + constant, from its value
// and slope at x.
Term of_difference(double value, double slope, double scale_chosen, double scale_rejected) {
  return {value, slope * scale_chosen, -slope * scale_rejected};
}

// log odds = l - log(1 - e^l) of a mean log-probability, and its derivative 1 / (1 - e^l).
struct LogOdds {
  explicit LogOdds(double mean_log_prob) {
    // Written so that NaN stays.
    const double l = mean_log_prob > kLargestMeanLogProb ? kLargestMeanLogProb : mean_log_prob;
    const double log1mexp = l < -M_LN2 ? std::log1p(-std::exp(l)) : std::log(-std::expm1(l));
    value = l - log1mexp;
    slope = -1 / std::expm1(l);
  }
  double value, slope;
};

// beta times the difference of the log-ratios: the margin of DPO's implicit rewards.
double margin(const Pair& p, double beta) { return beta * (p.chosen_ratio - p.rejected_ratio); }

Term sigmoid_term(const Pair& p, double beta) {
  const double x = margin(p, beta);
  return of_difference(-log_sigmoid(x), -sigmoid(-x), beta, beta);
}

Term hinge_term(const Pair& p, double beta) {
  const double x = margin(p, beta);
  // 0 * x rather than 0: NaN stays.
  return of_difference(x < 1 ? 1 - x : 0 * x, x < 1 ? -1 : 0, beta, beta);
}

Term ipo_term(const Pair& p, double beta) {
  const double per_chosen = per_token(p.chosen_tokens);
  const double per_rejected = per_token(p.rejected_tokens);
  const double error =
      p.chosen_ratio * per_chosen - p.rejected_ratio * per_rejected - 1 / (2 * beta);
  return of_difference(error * error, 2 * error, per_chosen, per_rejected);
}

// An unbiased estimate of the sigmoid loss where a share `smoothing` of the labels is swapped.
Term robust_term(const Pair& p, double beta, double smoothing) {
  const double x = margin(p, beta);
  const double scale = 1 / (1 - 2 * smoothing);
  return of_difference(scale * (-(1 - smoothing) * log_sigmoid(x) + smoothing * log_sigmoid(-x)),
                       scale * (-(1 - smoothing) * sigmoid(-x) - smoothing * sigmoid(x)), beta,
                       beta);
}

Term cdpo_term(const Pair& p, double beta, double smoothing) {
  const double x = margin(p, beta);
  return of_difference(-(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x),
                       -(1 - smoothing) * sigmoid(-x) + smoothing * sigmoid(x), beta, beta);
}

Term sigmoid_norm_term(const Pair& p, double beta) {
  const double per_chosen = per_token(p.chosen_tokens);
  const double per_rejected = per_token(p.rejected_tokens);
  const double y = beta * (p.chosen_ratio * per_chosen - p.rejected_ratio * per_rejected);
  return of_difference(-log_sigmoid(y), -sigmoid(-y), beta * per_chosen, beta * per_rejected);
}

Term simpo_term(const Pair& p, double beta, double gamma) {
  const double per_chosen = per_token(p.chosen_tokens);
  const double per_rejected = per_token(p.rejected_tokens);
  const double y = beta * (p.chosen * per_chosen - p.rejected * per_rejected) - gamma;
  return of_difference(-log_sigmoid(y), -sigmoid(-y), beta * per_chosen, beta * per_rejected);
}

// The odds-ratio term; orpo's cross-entropy is in chosen_nll_sum.
Term orpo_term(const Pair& p, double beta) {
  const LogOdds chosen(p.chosen / p.chosen_tokens);
  const LogOdds rejected(p.rejected / p.rejected_tokens);
  const double x = chosen.value - rejected.value;
  const double slope = -beta * sigmoid(-x);
  return of_difference(-beta * log_sigmoid(x), slope, chosen.slope / p.chosen_tokens,
                       rejected.slope / p.rejected_tokens);
}

Term apo_zero_term(const Pair& p, double beta) {
  const double c = beta * p.chosen_ratio;
  const double r = beta * p.rejected_ratio;
  return {sigmoid(-c) + sigmoid(r), -beta * sigmoid_slope(c), beta * sigmoid_slope(r)};
}

Term apo_down_term(const Pair& p, double beta) {
  const double c = beta * p.chosen_ratio;
  const double x = margin(p, beta);
  return {sigmoid(c) + sigmoid(-x), beta * (sigmoid_slope(c) - sigmoid_slope(x)),
          beta * sigmoid_slope(x)};
}

}  // namespace

Term term_of(Loss loss, const Pair& p, const PreferenceOptions& options) {
  const double beta = options.beta;
  switch (loss) {
    case Loss::kSigmoid: return sigmoid_term(p, beta);
    case Loss::kHinge: return hinge_term(p, beta);
    case Loss::kIpo: return ipo_term(p, beta);
    case Loss::kRobust: return robust_term(p, beta, options.label_smoothing);
    case Loss::kCdpo: return cdpo_term(p, beta, options.label_smoothing);
    case Loss::kSigmoidNorm: return sigmoid_norm_term(p, beta);
    case Loss::kSimpo: return simpo_term(p, beta, options.simpo_gamma);
    case Loss::kOrpo: return orpo_term(p, beta);
    case Loss::kApoZero: return apo_zero_term(p, beta);
    case Loss::kApoDown: return apo_down_term(p, beta);
    case Loss::kSft: return {};  // it is chosen_nll_sum alone
  }
  RETORT_CHECK(false) << "a loss without a formula";
  return {};
}

}  // namespace retort::losses::detail
