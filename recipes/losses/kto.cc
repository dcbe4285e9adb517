#include "recipes/losses/kto.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <string>

#include "base/error.h"
#include "recipes/losses/detail/formed_gradient.h"
#include "recipes/losses/detail/vector_arguments.h"

namespace retort::losses {
namespace {

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

void require_positive(const char* field, double value) {
  if (!(value > 0 && std::isfinite(value)))
    throw Error(ErrorCode::kInvalidArgument, std::string(field) + " must be positive and finite")
        .with(field, value);
}

// The loss of one completion and its derivative with respect to log pi.
struct RowTerm {
  double value;
  double slope;
};

// 1 - sigmoid(beta (s - z)) for a desirable completion, 1 - sigmoid(beta (z - s)) for an
// undesirable one, where s is the log-ratio and z the estimate of the divergence.
RowTerm term_of(double log_ratio, bool desirable, double kl, const KtoLossOptions& options) {
  const double x = options.beta * (log_ratio - kl);
  const double slope = options.beta * sigmoid(x) * sigmoid(-x);
  if (desirable) return {options.desirable_weight * sigmoid(-x), -options.desirable_weight * slope};
  return {options.undesirable_weight * sigmoid(x), options.undesirable_weight * slope};
}

void check(const KtoInputs& inputs, const KtoLossOptions& options) {
  options.validate();
  const auto count = static_cast<int64_t>(inputs.desirable.size());
  detail::require_vector(inputs.policy, "policy", count);
  detail::require_vector(inputs.reference, "reference", count);
  if (inputs.kl < 0)
    throw Error(ErrorCode::kInvalidArgument, "kl is negative; expected what kl_estimate() gives")
        .with("kl", inputs.kl);
  if (inputs.kl != 0 && !needs_kl(options))
    throw Error(ErrorCode::kInvalidArgument,
                "kl has no effect: apo_zero_unpaired compares with 0; leave it out")
        .with("kl", inputs.kl);
}

}  // namespace

void KtoLossOptions::validate() const {
  require_positive("beta", beta);
  require_positive("desirable_weight", desirable_weight);
  require_positive("undesirable_weight", undesirable_weight);
}

bool needs_kl(const KtoLossOptions& options) { return options.loss_type == KtoLoss::kKto; }

double kl_estimate(double log_ratio_sum, double count) {
  const double mean = log_ratio_sum / count;
  // std::max would turn NaN into 0 and hide it.
  return mean < 0 ? 0 : mean;
}

KtoResult kto_loss(const KtoInputs& inputs, const KtoLossOptions& options) {
  check(inputs, options);
  KtoResult result;
  result.count = static_cast<int64_t>(inputs.desirable.size());
  const detail::FloatVector policy(inputs.policy);
  const detail::FloatVector reference(inputs.reference);
  const at::Tensor gradient = at::empty({result.count}, at::kFloat);
  float* to_policy = gradient.data_ptr<float>();

  // The value is a sum over the completions; a derivative belongs to one of them.
  double loss = 0;
  for (int64_t i = 0; i < result.count; ++i) {
    const bool desirable = inputs.desirable[static_cast<size_t>(i)];
    const double log_ratio = policy[i] - reference[i];
    const RowTerm term = term_of(log_ratio, desirable, inputs.kl, options);
    loss += term.value;
    to_policy[i] = static_cast<float>(term.slope);

    KtoResult::Side& side = desirable ? result.chosen : result.rejected;
    ++side.count;
    side.rewards_sum += options.beta * log_ratio;
    side.logps_sum += policy[i];
  }
  result.loss_sum = detail::scalar_with_gradients(loss, {{inputs.policy, gradient}});
  return result;
}

}  // namespace retort::losses
