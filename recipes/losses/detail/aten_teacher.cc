#include "recipes/losses/detail/aten_teacher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>

#include <limits>

#include "recipes/losses/detail/row_loss.h"

namespace retort::losses::detail {

at::Tensor teacher_status(const at::Tensor& max, const at::Tensor& sum, double max_abs_log_mass) {
  const auto code = [](RowStatus status) { return static_cast<int64_t>(status); };
  // A comparison with NaN is false, so NaN counts as not finite.
  const at::Tensor finite = (sum > 0).logical_and_(sum < std::numeric_limits<double>::infinity());
  at::Tensor status = at::full(sum.sizes(), code(RowStatus::kOk), sum.options().dtype(at::kInt));
  if (max_abs_log_mass >= 0)
    status.masked_fill_(((max + sum.log()).abs() <= max_abs_log_mass).logical_not_(),
                        code(RowStatus::kTeacherNotNormal));
  return status.masked_fill_(finite.logical_not(), code(RowStatus::kTeacherNotFinite));
}

void refuse_first(const at::Tensor& status) {
  const at::Tensor flat = status.to(at::kCPU).contiguous();
  const int32_t* codes = flat.const_data_ptr<int32_t>();
  for (int64_t row = 0; row < flat.numel(); ++row)
    if (static_cast<RowStatus>(codes[row]) != RowStatus::kOk)
      refuse_row(static_cast<RowStatus>(codes[row]), row);
}

at::Tensor code_of_first(const at::Tensor& status) {
  const auto f64 = status.options().dtype(at::kDouble);
  // The first row that is refused has the least code, so one minimum finds it without a copy to the
  // host.
  const at::Tensor codes = at::arange(status.numel(), f64).mul_(kRowStatuses).add_(status);
  const at::Tensor none = at::full({1}, kNoRowRefused, f64);
  codes.masked_fill_(status == static_cast<int64_t>(RowStatus::kOk), kNoRowRefused);
  return at::cat({none, codes}).amin();
}

void write_gradient(at::Tensor logits, const TargetSoftmax& softmax, const RowLoss& loss,
                    const at::Tensor& divergence) {
  if (loss.ce_weight == 0) {
    // Without cross-entropy the ids beyond the common ones have no gradient, and its softmax need
    // not be formed.
    logits.narrow(1, divergence.size(1), logits.size(1) - divergence.size(1)).zero_();
    at::Tensor taking_part = logits.narrow(1, 0, divergence.size(1));
    at::mul_out(taking_part, divergence, at::full({}, loss.kd_weight, divergence.options()));
    return;
  }
  softmax.write_softmax(logits, at::full({}, loss.ce_weight, softmax.side.sum.options()));
  logits.narrow(1, 0, divergence.size(1)).add_(divergence, loss.kd_weight);
  softmax.add_at_target(logits, at::full({logits.size(0)}, -loss.ce_weight, logits.options()));
}

}  // namespace retort::losses::detail
