#include "roles/payload/head_logits.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

namespace retort::roles {

HeadLogits::HeadLogits(const at::Tensor& hidden, const at::Tensor& weight, double softcap)
    : in_bfloat16_(!hidden.is_cpu() && hidden.scalar_type() == at::kBFloat16 &&
                   weight.scalar_type() == at::kBFloat16),
      hidden_(hidden),
      weight_((in_bfloat16_ ? weight : weight.to(at::kFloat)).t()),
      softcap_(softcap) {}

at::Tensor HeadLogits::rows(int64_t begin, int64_t count) const {
  const at::Tensor states = hidden_.narrow(0, begin, count);
  at::Tensor logits = in_bfloat16_ ? at::mm(states, weight_, at::kFloat)
                                   : at::matmul(states.to(at::kFloat), weight_);
  return softcap_ > 0 ? logits.div_(softcap_).tanh_().mul_(softcap_) : logits;
}

}  // namespace retort::roles
