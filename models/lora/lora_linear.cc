#include "models/lora/lora_linear.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "parallel/gemm.h"

namespace retort::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Says how the arguments of AdaptedLinear belong together. Weights that the model's files hold as
// one share an A.
struct AdaptedPlan {
  std::vector<int> a, b;             // of each weight: its factors' places among the factors; -1
  std::vector<DropoutPlace> places;  // of each weight
  double scaling = 1;
  TensorParallel tp;  // enter_block is done inside; inactive: it is not
  DropoutRows dropout;

  // Tells whether no later weight has the A of this one.
  bool is_last_of_a(size_t weight) const {
    return std::find(a.begin() + static_cast<std::ptrdiff_t>(weight) + 1, a.end(), a[weight]) ==
           a.end();
  }
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

    // What A makes of the input is formed once for all weights that share it, and kept for the
    // gradient by B.
    variable_list outputs, reduced(factors.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      Tensor y = parallel::linear_forward(input, weights[i], biases.empty() ? Tensor() : biases[i]);
      if (plan.a[i] >= 0) {
        const auto a = static_cast<size_t>(plan.a[i]), b = static_cast<size_t>(plan.b[i]);
        if (!reduced[a].defined())
          reduced[a] = parallel::linear_forward(dropped(input, plan.dropout, plan.places[i]),
                                                factors[a], {});
        y.add_(parallel::linear_forward(reduced[a], factors[b], {}), plan.scaling);
      }
      outputs.push_back(std::move(y));
    }
    saved.insert(saved.end(), reduced.begin(), reduced.end());

    ctx->save_for_backward(saved);
    ctx->saved_data["biases"] = static_cast<int64_t>(biases.size());
    ctx->saved_data["factors"] = static_cast<int64_t>(factors.size());
    ctx->saved_data["plan"] =
        c10::IValue::make_capsule(c10::make_intrusive<AdaptedPlanHolder>(plan));
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<AdaptedPlanHolder>(ctx->saved_data["plan"].toCapsule());
    const AdaptedPlan& plan = holder->plan;
    const auto num_biases = static_cast<size_t>(ctx->saved_data["biases"].toInt());
    const auto num_factors = static_cast<size_t>(ctx->saved_data["factors"].toInt());

    // Forward saved the input, the weights, the factors, and in the place of each A what it made of
    // the input. A gathered input is gathered again.
    const variable_list saved = ctx->get_saved_variables();
    const size_t num_weights = plan.a.size();
    const size_t first_factor = 1 + num_weights;
    const size_t first_reduced = first_factor + num_factors;
    const bool gathers = plan.tp.active() && plan.tp.sequence;
    const Tensor input = gathers ? gather_rows(saved[0], plan.tp) : saved[0];

    // The result has a place for each argument of forward: x, weights, biases, factors, plan.
    const size_t factor_results = 1 + num_weights + num_biases;
    variable_list result(factor_results + num_factors + 1);
    variable_list through(num_factors);  // the gradient by what an A made, of all its B's
    const bool wants_input = ctx->needs_input_grad(0);
    for (size_t i = 0; i < num_weights; ++i) {
      if (grads[i].defined()) {
        const Tensor grad = grads[i].contiguous();
        if (wants_input) parallel::add_grad_input(result[0], grad, saved[1 + i]);
        if (ctx->needs_input_grad(1 + i)) result[1 + i] = parallel::linear_grad_weight(grad, input);
        if (i < num_biases && ctx->needs_input_grad(1 + num_weights + i))
          result[1 + num_weights + i] = grad.sum(0);
        if (plan.a[i] < 0) continue;

        // dB = scaling dy^T (x A^T).
        const auto a = static_cast<size_t>(plan.a[i]), b = static_cast<size_t>(plan.b[i]);
        add_to_gradient(
            through[a],
            parallel::linear_grad_input(grad, saved[first_factor + b]).mul_(plan.scaling));
        if (ctx->needs_input_grad(factor_results + b))
          result[factor_results + b] =
              parallel::linear_grad_weight(grad, saved[first_reduced + a]).mul_(plan.scaling);
      }
      if (plan.a[i] < 0 || !plan.is_last_of_a(i)) continue;

      // dA = scaling (dy B)^T x; dx gains scaling (dy B) A: of x as A read it.
      const auto a = static_cast<size_t>(plan.a[i]);
      if (!through[a].defined()) continue;
      if (ctx->needs_input_grad(factor_results + a))
        result[factor_results + a] =
            parallel::linear_grad_weight(through[a], dropped(input, plan.dropout, plan.places[i]));
      if (wants_input)
        result[0].add_(dropped(parallel::linear_grad_input(through[a], saved[first_factor + a]),
                               plan.dropout, plan.places[i]));
    }

    // The other ranks' rows of the weights contribute to dx too, so their parts are summed.
    if (plan.tp.active() && wants_input) result[0] = sum_input_gradient(result[0], plan.tp);
    return result;
  }
};

}  // namespace

std::vector<Tensor> adapted_column_linear(const Tensor& x, const std::vector<Tensor>& weights,
                                          const std::vector<Tensor>& biases,
                                          const std::vector<LoraFactors>& factors, double scaling,
                                          const TensorParallel& tp, const DropoutRows& dropout) {
  RETORT_CHECK(factors.size() == weights.size() &&
               (biases.empty() || biases.size() == weights.size()))
      << "factors and a bias for each weight";
  AdaptedPlan plan{
      .a = {}, .b = {}, .places = {}, .scaling = scaling, .tp = tp, .dropout = dropout};
  std::vector<Tensor> list;
  for (size_t i = 0; i < factors.size(); ++i) {
    const LoraFactors& one = factors[i];
    const bool shares = one.defined() && i > 0 && one.a.is_same(factors[i - 1].a);
    plan.places.push_back(one.place);
    plan.a.push_back(!one.defined() ? -1 : shares ? plan.a.back() : static_cast<int>(list.size()));
    if (one.defined() && !shares) list.push_back(one.a);
    plan.b.push_back(one.defined() ? static_cast<int>(list.size()) : -1);
    if (one.defined()) list.push_back(one.b);
  }
  return AdaptedLinear::apply(x, at::TensorList(weights), at::TensorList(biases),
                              at::TensorList(list), plan);
}

Tensor adapted_row_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                          const LoraFactors& factors, double scaling, const TensorParallel& tp,
                          const DropoutRows& dropout) {
  std::vector<Tensor> biases;
  if (bias.defined() && !tp.active()) biases.push_back(bias);
  const Tensor y =
      adapted_column_linear(x, {weight}, biases, {factors}, scaling, {}, dropout).front();
  if (!tp.active()) return y;
  const Tensor sum = leave_block(y, tp);
  return bias.defined() ? sum + bias : sum;
}

}  // namespace retort::models
