#include "recipes/losses/detail/formed_gradient.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "base/error.h"

namespace retort::losses::detail {
namespace {

class FormedFunction : public torch::autograd::Function<FormedFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& /*first*/,
                            const std::optional<at::Tensor>& /*second*/, double value,
                            const std::vector<FormedGradient>* inputs) {
    ctx->save_for_backward({inputs->front().gradient, inputs->size() > 1 ? inputs->back().gradient : at::Tensor()});
    return at::scalar_tensor(value, inputs->front().gradient.options());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& incoming) {
    if (at::GradMode::is_enabled())
      throw Error(ErrorCode::kInvalidArgument,
                  "this loss is differentiable once: its gradient was formed with its value; call backward without create_graph");
    const auto saved = ctx->get_saved_variables();
    return {saved[0].mul(incoming[0]), saved[1].defined() ? saved[1].mul(incoming[0]) : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor scalar_with_gradients(double value, const std::vector<FormedGradient>& inputs) {
  RETORT_CHECK(inputs.size() == 1 || inputs.size() == 2);
  const std::optional<at::Tensor> second = inputs.size() > 1 ? std::optional(inputs.back().input) : std::nullopt;
  return FormedFunction::apply(inputs.front().input, second, value, &inputs);
}

}  // namespace retort::losses::detail
