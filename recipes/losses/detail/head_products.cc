#include "recipes/losses/detail/head_products.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rsub.h>

#include "base/error.h"
#include "parallel/gemm.h"

namespace retort::losses::detail {
namespace {

bool both_bfloat16_on_a_device(const at::Tensor& hidden, const at::Tensor& weight) {
  return !hidden.is_cpu() && hidden.scalar_type() == at::kBFloat16 &&
         weight.scalar_type() == at::kBFloat16;
}

}  // namespace

at::Tensor form_logits(const at::Tensor& inputs, const at::Tensor& weight, const at::Tensor& bias) {
  if (inputs.size(0) >= kRowQuantum) return parallel::linear_forward(inputs, weight, bias);
  return bias.defined() ? at::addmm(bias, inputs, weight.t()) : at::mm(inputs, weight.t());
}

HeadProducts::HeadProducts(const at::Tensor& hidden, const at::Tensor& weight,
                           const at::Tensor& bias, double softcap)
    : in_bfloat16_(both_bfloat16_on_a_device(hidden, weight)),
      softcap_(softcap),
      hidden_(hidden.detach()),
      weight_(in_bfloat16_ ? weight.detach() : weight.detach().to(at::kFloat)),
      bias_(bias.defined() ? bias.detach().to(at::kFloat) : at::Tensor()) {}

at::Tensor HeadProducts::rows(int64_t begin, int64_t count) const {
  const at::Tensor rows = hidden_.narrow(0, begin, count);
  return in_bfloat16_ ? rows : rows.to(at::kFloat);
}

at::Tensor HeadProducts::products(const at::Tensor& rows, const at::Tensor& bias) const {
  if (!in_bfloat16_) return form_logits(rows, weight_, bias);
  at::Tensor logits = at::mm(rows, weight_.t(), at::kFloat);
  return bias.defined() ? logits.add_(bias) : logits;
}

at::Tensor HeadProducts::logits(const at::Tensor& rows, at::Tensor* slopes) const {
  if (softcap_ == 0) return products(rows, bias_);

  // The slope is d c tanh(x / c) / dx = 1 - tanh(x / c)^2. The bias comes after the cap, as the
  // head defines it.
  at::Tensor logits = products(rows, {}).div_(softcap_).tanh_();
  if (slopes != nullptr) *slopes = at::rsub(logits.square(), 1);
  logits.mul_(softcap_);
  return bias_.defined() ? logits.add_(bias_) : logits;
}

at::Tensor HeadProducts::factor(const at::Tensor& gradient) const {
  return in_bfloat16_ ? gradient.to(at::kBFloat16) : gradient;
}

void HeadProducts::write_hidden_gradient(at::Tensor out, const at::Tensor& factor,
                                         const at::Tensor& row_weights) const {
  if (in_bfloat16_) {
    RETORT_CHECK(!row_weights.defined()) << "only float32 on the CPU keeps chunks";
    at::mm_out(out, factor, weight_);
    return;
  }
  at::Tensor product = factor.size(0) >= kRowQuantum ? parallel::linear_grad_input(factor, weight_)
                                                     : at::mm(factor, weight_);
  if (row_weights.defined()) product.mul_(row_weights);
  out.copy_(product);
}

void HeadProducts::add_weight_gradient(at::Tensor out, const at::Tensor& factor,
                                       const at::Tensor& rows, bool first) const {
  const int beta = first ? 0 : 1;
  if (in_bfloat16_)
    at::addmm_out(out, out, factor.t(), rows, at::kFloat, beta);
  else
    at::addmm_out(out, out, factor.t(), rows, beta);
}

}  // namespace retort::losses::detail
