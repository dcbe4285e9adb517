#include "models/ops/tensor_parallel.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"

namespace retort::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

class EnterBlock : public Function<EnterBlock> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const TensorParallel& tp) {
    ctx->saved_data["tp"] = to_ivalue(tp);
    return tp.sequence ? gather_rows(x, tp) : x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const TensorParallel tp = from_ivalue(ctx->saved_data["tp"]);
    return {sum_input_gradient(tp.sequence ? grads[0] : grads[0].clone(), tp), Tensor()};
  }
};

class LeaveBlock : public Function<LeaveBlock> {
 public:
  static Tensor forward(AutogradContext* ctx, Tensor y, const TensorParallel& tp) {
    ctx->saved_data["tp"] = to_ivalue(tp);
    if (tp.sequence) return sum_and_scatter_rows(y, tp);
    ctx->mark_dirty({y});
    tp.group->all_reduce(y);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const TensorParallel tp = from_ivalue(ctx->saved_data["tp"]);
    return {tp.sequence ? gather_rows(grads[0], tp) : grads[0], Tensor()};
  }
};

}  // namespace

c10::IValue to_ivalue(const TensorParallel& tp) {
  return c10::IValue::make_capsule(c10::make_intrusive<TensorParallelHolder>(tp));
}
TensorParallel from_ivalue(const c10::IValue& value) {
  return c10::static_intrusive_pointer_cast<TensorParallelHolder>(value.toCapsule())->tp;
}

Tensor gather_rows(const Tensor& x, const TensorParallel& tp) {
  const Tensor parts = tp.group->all_gather(x.contiguous());  // [n, R/n, H]
  return parts.view({parts.size(0) * parts.size(1), parts.size(2)});
}

Tensor sum_and_scatter_rows(const Tensor& x, const TensorParallel& tp) {
  RETORT_CHECK(x.size(0) % tp.group->size() == 0)
      << x.size(0) << " rows over " << tp.group->size() << " ranks";
  // The sum over the ranks is formed in fp32 and rounded once. That of two parts is rounded once in
  // their own dtype too, which a device can send: half the bytes for the same bits.
  const bool sums_own_dtype =
      !x.is_cpu() && tp.group->size() == 2 && tp.group->has_device_backend();
  const Tensor parts = x.detach().to(sums_own_dtype ? x.scalar_type() : at::kFloat).contiguous();
  Tensor sum = at::empty({x.size(0) / tp.group->size(), x.size(1)}, parts.options());
  Tensor flat = sum.view({-1});
  tp.group->reduce_scatter(flat, parts.view({-1}));
  return sum.to(x.scalar_type());
}

Tensor sum_input_gradient(Tensor part, const TensorParallel& tp) {
  if (tp.sequence) return sum_and_scatter_rows(part, tp);
  part = part.contiguous();
  tp.group->all_reduce(part);
  return part;
}

Tensor enter_block(const Tensor& x, const TensorParallel& tp) {
  return tp.active() ? EnterBlock::apply(x, tp) : x;
}
Tensor leave_block(const Tensor& y, const TensorParallel& tp) {
  return tp.active() ? LeaveBlock::apply(y, tp) : y;
}

}  // namespace retort::models
