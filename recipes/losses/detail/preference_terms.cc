#include "recipes/losses/detail/preference_terms.h"

#include <cmath>

#include "base/error.h"

namespace retort::losses::detail {
namespace {

using Loss = PreferenceLoss;

constexpr double kLargestExponent = 80;        // alpha_divergence, as TRL's in float32
constexpr double kAlphaIsOne = 1e-6;           // nearer to 1 alpha is reverse_kl
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
    // A comparison with NaN is false, so NaN stays; std::min would hide it.
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
  // It is 0 * x rather than 0, so that NaN stays.
  return of_difference(x < 1 ? 1 - x : 0 * x, x < 1 ? -1 : 0, beta, beta);
}

Term ipo_term(const Pair& p, double beta) {
  const double per_chosen = per_token(p.chosen_tokens);
  const double per_rejected = per_token(p.rejected_tokens);
  const double error =
      p.chosen_ratio * per_chosen - p.rejected_ratio * per_rejected - 1 / (2 * beta);
  return of_difference(error * error, 2 * error, per_chosen, per_rejected);
}

// The unbiased estimate of the sigmoid loss if a share `smoothing` of the labels is swapped.
Term robust_term(const Pair& p, double beta, double smoothing) {
  const double x = margin(p, beta);
  const double scale = 1 / (1 - 2 * smoothing);
  return of_difference(scale * (-(1 - smoothing) * log_sigmoid(x) + smoothing * log_sigmoid(-x)),
                       scale * (-(1 - smoothing) * sigmoid(-x) - smoothing * sigmoid(x)), beta,
                       beta);
}

// -log sigmoid(x) where a share `smoothing` of the labels is swapped, and its slope.
struct Smoothed {
  Smoothed(double x, double smoothing)
      : value(-(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x)),
        slope(-(1 - smoothing) * sigmoid(-x) + smoothing * sigmoid(x)) {}
  double value, slope;
};

Term cdpo_term(const Pair& p, double beta, double smoothing) {
  const Smoothed s(margin(p, beta), smoothing);
  return of_difference(s.value, s.slope, beta, beta);
}

// KL((q, 1 - q) || (1 - smoothing, smoothing)) of the policy's preference q = sigmoid(x).
Term exo_pair_term(const Pair& p, double beta, double smoothing) {
  const double x = margin(p, beta);
  const double log_wrong = std::log(smoothing);
  const double log_right = std::log1p(-smoothing);
  return of_difference(
      sigmoid(x) * (log_sigmoid(x) - log_right) + sigmoid(-x) * (log_sigmoid(-x) - log_wrong),
      sigmoid_slope(x) * (x - log_right + log_wrong), beta, beta);
}

Term nca_pair_term(const Pair& p, double beta) {
  const double c = beta * p.chosen_ratio;
  const double r = beta * p.rejected_ratio;
  return {-log_sigmoid(c) - 0.5 * log_sigmoid(-c) - 0.5 * log_sigmoid(-r),
          beta * (0.5 * sigmoid(c) - sigmoid(-c)), beta * 0.5 * sigmoid(r)};
}

Term bco_pair_term(const Pair& p, double beta) {
  const double c = beta * p.chosen_ratio;
  const double r = beta * p.rejected_ratio;
  return {-log_sigmoid(c) - log_sigmoid(-r), -beta * sigmoid(-c), beta * sigmoid(r)};
}

Term sppo_hard_term(const Pair& p, double beta) {
  const double chosen_error = p.chosen_ratio - 0.5 / beta;
  const double rejected_error = p.rejected_ratio + 0.5 / beta;
  return {chosen_error * chosen_error + rejected_error * rejected_error, 2 * chosen_error,
          2 * rejected_error};
}

// The form of cdpo; in place of the pair's own reference margin stands that of equal place in the
// batch.
Term aot_term(const Pair& p, double beta, double smoothing) {
  const Smoothed s(beta * (p.chosen - p.rejected - p.margin_counterpart), smoothing);
  return of_difference(s.value, s.slope, beta, beta);
}

// The same with completions of the other kind. Each value counts once, with the chosen completion,
// and each slope where its own completion is.
Term aot_unpaired_term(const Pair& p, double beta, double smoothing) {
  const Smoothed of_chosen(beta * (p.chosen_ratio - p.chosen_counterpart), smoothing);
  const Smoothed of_rejected(beta * (p.rejected_counterpart - p.rejected_ratio), smoothing);
  return {of_chosen.value, beta * of_chosen.slope, -beta * of_rejected.slope};
}

// Mixes -log sigmoid(x) and e^-x by how far x / tau is above 0.
Term discopop_term(const Pair& p, double beta, double tau) {
  const double x = margin(p, beta);
  const double share = sigmoid(x / tau);
  const double rest = sigmoid(-x / tau);
  // e^-x * share is formed in one exponent: far below 0 the one is infinite and the other 0.
  const double exponential = std::exp(log_sigmoid(x / tau) - x);
  return of_difference(
      -log_sigmoid(x) * rest + exponential,
      -sigmoid(-x) * rest + log_sigmoid(x) * share * rest / tau - exponential * (1 - rest / tau),
      beta, beta);
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

// (e^((alpha - 1) u) - 1) / (alpha - 1). NaN stays.
Score alpha_score(double log_ratio, double alpha) {
  const double power = alpha - 1;
  if (std::abs(power) < kAlphaIsOne) return {log_ratio, 1};
  const double exponent = std::min(power * log_ratio, kLargestExponent);
  const bool stopped = power * log_ratio > kLargestExponent;
  return {std::expm1(exponent) / power, stopped ? 0 : std::exp(exponent)};
}

}  // namespace

Score score_of(double log_ratio, const PreferenceOptions& options) {
  switch (options.f_divergence_type) {
    case FDivergence::kReverseKl: return {log_ratio, 1};
    case FDivergence::kForwardKl: return {-std::expm1(-log_ratio), std::exp(-log_ratio)};
    case FDivergence::kJsDivergence: return {M_LN2 + log_sigmoid(log_ratio), sigmoid(-log_ratio)};
    case FDivergence::kAlphaDivergence:
      return alpha_score(log_ratio, options.f_alpha_divergence_coef);
  }
  RETORT_CHECK(false) << "a divergence without a formula";
  return {};
}

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
    case Loss::kExoPair: return exo_pair_term(p, beta, options.label_smoothing);
    case Loss::kNcaPair: return nca_pair_term(p, beta);
    case Loss::kBcoPair: return bco_pair_term(p, beta);
    case Loss::kSppoHard: return sppo_hard_term(p, beta);
    case Loss::kAot: return aot_term(p, beta, options.label_smoothing);
    case Loss::kAotUnpaired: return aot_unpaired_term(p, beta, options.label_smoothing);
    case Loss::kDiscopop: return discopop_term(p, beta, options.discopop_tau);
    case Loss::kSft: return {};  // it is chosen_nll_sum alone
  }
  RETORT_CHECK(false) << "a loss without a formula";
  return {};
}

}  // namespace retort::losses::detail
