#include "models/lora/lora_linear.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "base/error.h"
#include "parallel/gemm.h"

namespace retort::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// How the arguments of AdaptedLinear belong together.
struct AdaptedPlan {
  std::vector<int> factor;  // of each weight: where its A is among the factors, B behind it; -1
  double scaling = 1;
  TensorParallel tp;  // enter_block is done inside; inactive: it is not
};

// Carries the plan to backward in Function's saved_data, as a capsule.
struct AdaptedPlanHolder : torch::CustomClassHolder {
  explicit AdaptedPlanHolder(AdaptedPlan value) : plan(std::move(value)) {}
  AdaptedPlan plan;
};

void add_to_gradient(Tensor& sum, Tensor part) {
  if (sum.defined())
    sum.add_(part);
  else
    sum = std::move(part);
}

class AdaptedLinear : public Function<AdaptedLinear> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& x, at::TensorList weights,
                               at::TensorList biases, at::TensorList factors,
                               const AdaptedPlan& plan) {
    const bool gathers = plan.tp.active() && plan.tp.sequence;
    const Tensor input = gathers ? gather_rows(x, plan.tp) : x;
    variable_list saved{x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    saved.insert(saved.end(), factors.begin(), factors.end());

    // What A makes of the input is kept for the gradient by B.
    variable_list outputs;
    for (size_t i = 0; i < weights.size(); ++i) {
      Tensor y = parallel::linear_forward(input, weights[i], biases.empty() ? Tensor() : biases[i]);
      if (plan.factor[i] >= 0) {
        const auto a = static_cast<size_t>(plan.factor[i]);
        const Tensor reduced = parallel::linear_forward(input, factors[a], {});
        y.add_(parallel::linear_forward(reduced, factors[a + 1], {}), plan.scaling);
        saved.push_back(reduced);
      }
      outputs.push_back(std::move(y));
    }

    ctx->save_for_backward(saved);
    ctx->saved_data["biases"] = static_cast<int64_t>(biases.size());
    ctx->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<AdaptedPlanHolder>(plan));
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<AdaptedPlanHolder>(ctx->saved_data["plan"].toCapsule());
    const AdaptedPlan& plan = holder->plan;
    const auto num_biases = static_cast<size_t>(ctx->saved_data["biases"].toInt());

    // Saved: the input, the weights, the factors, and what each A made of the input.
    const variable_list saved = ctx->get_saved_variables();
    const size_t num_weights = plan.factor.size();
    size_t num_adapted = 0;
    for (const int first : plan.factor)
      num_adapted += first >= 0 ? 1 : 0;
    const size_t first_factor = 1 + num_weights;
    size_t next_reduced = first_factor + 2 * num_adapted;
    const bool gathers = plan.tp.active() && plan.tp.sequence;
    const Tensor input = gathers ? gather_rows(saved[0], plan.tp) : saved[0];

    // One place for each argument of forward: x, weights, biases, factors, plan.
    const size_t factor_results = 1 + num_weights + num_biases;
    variable_list result(factor_results + 2 * num_adapted + 1);
    const bool wants_input = ctx->needs_input_grad(0);
    for (size_t i = 0; i < num_weights; ++i) {
      const Tensor* reduced = plan.factor[i] >= 0 ? &saved[next_reduced++] : nullptr;
      if (!grads[i].defined()) continue;
      const Tensor grad = grads[i].contiguous();
      if (wants_input) add_to_gradient(result[0], parallel::linear_grad_input(grad, saved[1 + i]));
      if (ctx->needs_input_grad(1 + i)) result[1 + i] = parallel::linear_grad_weight(grad, input);
      if (i < num_biases && ctx->needs_input_grad(1 + num_weights + i))
        result[1 + num_weights + i] = grad.sum(0);
      if (reduced == nullptr) continue;

      // dB = scaling dy^T (x A^T); dA = scaling (dy B)^T x; dx gains scaling (dy B) A.
      const auto a = static_cast<size_t>(plan.factor[i]);
      const Tensor through_b =
          parallel::linear_grad_input(grad, saved[first_factor + a + 1]).mul_(plan.scaling);
      if (ctx->needs_input_grad(factor_results + a))
        result[factor_results + a] = parallel::linear_grad_weight(through_b, input);
      if (ctx->needs_input_grad(factor_results + a + 1))
        result[factor_results + a + 1] =
            parallel::linear_grad_weight(grad, *reduced).mul_(plan.scaling);
      if (wants_input)
        result[0].add_(parallel::linear_grad_input(through_b, saved[first_factor + a]));
    }

    // The other ranks' rows of the weights contribute to dx too.
    if (plan.tp.active() && wants_input) result[0] = sum_input_gradient(result[0], plan.tp);
    return result;
  }
};

}  // namespace

std::vector<Tensor> adapted_column_linear(const Tensor& x, const std::vector<Tensor>& weights,
                                          const std::vector<Tensor>& biases,
                                          const std::vector<LoraFactors>& factors, double scaling,
                                          const TensorParallel& tp) {
  RETORT_CHECK(factors.size() == weights.size() &&
               (biases.empty() || biases.size() == weights.size()))
      << "factors and a bias for each weight";
  AdaptedPlan plan{.factor = {}, .scaling = scaling, .tp = tp};
  std::vector<Tensor> list;
  for (const LoraFactors& one : factors) {
    plan.factor.push_back(one.defined() ? static_cast<int>(list.size()) : -1);
    if (one.defined()) list.insert(list.end(), {one.a, one.b});
  }
  return AdaptedLinear::apply(x, at::TensorList(weights), at::TensorList(biases),
                              at::TensorList(list), plan);
}

Tensor adapted_row_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                          const LoraFactors& factors, double scaling, const TensorParallel& tp) {
  std::vector<Tensor> biases;
  if (bias.defined() && !tp.active()) biases.push_back(bias);
  const Tensor y = adapted_column_linear(x, {weight}, biases, {factors}, scaling).front();
  if (!tp.active()) return y;
  const Tensor sum = leave_block(y, tp);
  return bias.defined() ? sum + bias : sum;
}

}  // namespace retort::models
