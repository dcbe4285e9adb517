#include "recipes/losses/detail/formed_gradient.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "base/error.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

class FormedFunction : public torch::autograd::Function<FormedFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& /*first*/,
                            const std::optional<at::Tensor>& /*second*/, double value,
                            const std::vector<FormedGradient>* inputs) {
    // The inputs are arguments only so that autograd ties them to this node. Their gradients are
    // known.
    const auto there = [](const FormedGradient& one) {
      return one.gradient.to(one.input.device());
    };
    const at::Tensor first = there(inputs->front());
    ctx->save_for_backward({first, inputs->size() > 1 ? there(inputs->back()) : at::Tensor()});
    return at::scalar_tensor(value, first.options());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& incoming) {
    check_differentiated_once("this loss is");
    const auto saved = ctx->get_saved_variables();
    const auto scaled = [&](const at::Tensor& gradient) {
      return gradient.defined() ? gradient.mul(incoming[0].to(gradient.device())) : at::Tensor();
    };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor scalar_with_gradients(double value, const std::vector<FormedGradient>& inputs) {
  RETORT_CHECK(inputs.size() == 1 || inputs.size() == 2);
  const std::optional<at::Tensor> second =
      inputs.size() > 1 ? std::optional(inputs.back().input) : std::nullopt;
  return FormedFunction::apply(inputs.front().input, second, value, &inputs);
}

}  // namespace retort::losses::detail
