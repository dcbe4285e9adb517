#include "parallel/gemm.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "parallel/gradient_sink.h"

namespace retort::parallel {
namespace {

using LinearPointwise = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, c10::string_view,
                                   c10::List<std::optional<at::Scalar>>,
                                   std::optional<c10::string_view>);

// a [M, K] times b [N, K] transposed; any strides.
at::Tensor onednn_linear(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<LinearPointwise>();
  return op.call(a, b, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, "none",
                 c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

bool use_onednn(const at::Tensor& a, const at::Tensor& b, int64_t rows, int64_t columns,
                int64_t inner) {
  constexpr int64_t kMinProducts = 1 << 20;
  return rows >= 8 && columns >= 8 && inner >= 8 && rows * columns * inner >= kMinProducts &&
         a.is_cpu() && b.is_cpu() && a.scalar_type() == at::kFloat &&
         b.scalar_type() == at::kFloat && at::Context::hasMKLDNN() &&
         at::globalContext().userEnabledMkldnn();
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (use_onednn(x, weight, x.size(0), weight.size(0), x.size(1)))
    return onednn_linear(x, weight, bias);
  return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

at::Tensor linear_grad_input(const at::Tensor& grad, const at::Tensor& weight) {
  if (use_onednn(grad, weight, grad.size(0), weight.size(1), grad.size(1)))
    return onednn_linear(grad, weight.t(), {});
  return at::mm(grad, weight);
}

at::Tensor linear_grad_weight(const at::Tensor& grad, const at::Tensor& x) {
  // oneDNN copies both operands to have their rows run along the sum, which pays for wide layers.
  constexpr int64_t kWide = 1024;
  const bool wide = grad.size(1) >= kWide && x.size(1) >= kWide;
  if (wide && use_onednn(grad, x, grad.size(1), x.size(1), grad.size(0)))
    return onednn_linear(grad.t(), x.t(), {});
  return at::mm(grad.t(), x);
}

void add_grad_input(at::Tensor& sum, const at::Tensor& grad, const at::Tensor& weight) {
  if (!sum.defined())
    sum = linear_grad_input(grad, weight);
  else if (sum.is_cpu())
    sum.add_(linear_grad_input(grad, weight));
  else
    sum.addmm_(grad, weight);
}

bool add_grad_weight(const at::Tensor& weight, const at::Tensor& grad, const at::Tensor& x) {
  const bool has_product =
      !grad.is_cpu() && grad.scalar_type() == at::kBFloat16 && x.scalar_type() == at::kBFloat16;
  GradientSink* sink = has_product ? gradient_sink_of(weight) : nullptr;
  if (sink == nullptr) return false;

  const at::NoGradGuard no_grad;
  auto [sum, is_empty] = sink->take();
  if (grad.size(0) > 0)
    at::addmm_out(sum, sum, grad.t(), x, at::kFloat, is_empty ? 0 : 1);
  else if (is_empty)
    sum.zero_();
  return true;
}

int64_t padded_rows(int64_t rows, at::DeviceType device) {
  if (device != at::DeviceType::CPU) return rows;
  const int64_t step = rows <= 8 ? 1 : rows <= 64 ? 8 : 32;
  return (rows + step - 1) / step * step;
}

}  // namespace retort::parallel
