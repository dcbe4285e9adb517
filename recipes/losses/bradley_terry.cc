#include "recipes/losses/bradley_terry.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "base/error.h"
#include "recipes/losses/detail/formed_gradient.h"
#include "recipes/losses/detail/vector_arguments.h"

namespace retort::losses {
namespace {

// -log sigmoid(x) and its derivative -sigmoid(-x). Only exp(-|x|) is formed, which cannot overflow.
struct LogisticTerm {
  double value;
  double slope;
};

LogisticTerm logistic_term(double x) {
  const double small = std::exp(-std::abs(x));
  const double value = std::log1p(small) + (x < 0 ? -x : 0);
  return {value, x < 0 ? -1 / (1 + small) : -small / (1 + small)};
}

}  // namespace

void BradleyTerryOptions::validate() const {
  if (center_rewards_coefficient >= 0 && std::isfinite(center_rewards_coefficient)) return;
  throw Error(ErrorCode::kInvalidArgument,
              "center_rewards_coefficient must be 0 or more, and finite")
      .with("center_rewards_coefficient", center_rewards_coefficient);
}

BradleyTerryResult bradley_terry_loss(const BradleyTerryInputs& inputs,
                                      const BradleyTerryOptions& options) {
  options.validate();
  BradleyTerryResult result;
  result.count = inputs.chosen.defined() ? inputs.chosen.numel() : 0;
  detail::require_vector(inputs.chosen, "chosen", result.count);
  detail::require_vector(inputs.rejected, "rejected", result.count);
  const detail::FloatVector chosen(inputs.chosen);
  const detail::FloatVector rejected(inputs.rejected);
  if (inputs.margin.defined()) detail::require_vector(inputs.margin, "margin", result.count);
  const detail::FloatVector margin(inputs.margin);
  const at::Tensor by_chosen = at::empty({result.count}, at::kFloat);
  const at::Tensor by_rejected = at::empty({result.count}, at::kFloat);
  float* to_chosen = by_chosen.data_ptr<float>();
  float* to_rejected = by_rejected.data_ptr<float>();

  // The value is a sum over the pairs; a derivative belongs to one of them.
  double loss = 0;
  // A pair's loss is -log sigmoid(chosen - rejected - margin), which says nothing of where the
  // scores lie. Centring adds its coefficient times (chosen + rejected)^2.
  const double center = options.center_rewards_coefficient;
  for (int64_t i = 0; i < result.count; ++i) {
    const double difference = chosen[i] - rejected[i];
    const double sum = chosen[i] + rejected[i];
    const LogisticTerm term = logistic_term(difference - margin[i]);
    loss += term.value + center * sum * sum;
    to_chosen[i] = static_cast<float>(term.slope + 2 * center * sum);
    to_rejected[i] = static_cast<float>(-term.slope + 2 * center * sum);

    result.accuracy_sum += difference > 0 ? 1 : 0;
    result.margin_sum += difference;
    result.chosen_sum += chosen[i];
    result.rejected_sum += rejected[i];
  }
  result.loss_sum = detail::scalar_with_gradients(
      loss, {{inputs.chosen, by_chosen}, {inputs.rejected, by_rejected}});
  return result;
}

}  // namespace retort::losses
