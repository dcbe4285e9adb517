#include "recipes/run/loop/mean_logits.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "models/ops/softcap.h"

namespace retort::recipes {
namespace {

constexpr int64_t kRowsAtOnce = 64;

// Forms the mean of the head's rows over the whole vocabulary, [H].
at::Tensor mean_row(const models::Head& head) {
  // On a device elements are converted as they are summed, on the host before.
  at::Tensor weight = head.weight.detach();
  if (weight.is_cpu()) weight = weight.to(at::kFloat);
  if (head.vocab.whole()) return weight.mean(0, /*keepdim=*/false, at::kFloat);
  at::Tensor sum = weight.sum(0, /*keepdim=*/false, at::kFloat);
  head.vocab.group->all_reduce(sum);
  return sum / static_cast<double>(head.vocab.total);
}

// A softcap is not linear, so the mean of capped logits does not follow from the mean of the head's
// rows: the logits are formed, some rows at a time to bound their memory.
at::Tensor mean_of_capped(const models::Head& head, const at::Tensor& rows) {
  const at::Tensor weight = head.weight.detach().to(at::kFloat).t();
  at::Tensor sum = at::zeros({rows.size(0)}, rows.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < rows.size(0); begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows.size(0) - begin);
    const at::Tensor products =
        at::matmul(rows.detach().narrow(0, begin, count).to(at::kFloat), weight);
    sum.narrow(0, begin, count).copy_(models::softcapped(products, head.softcap).sum(1));
  }
  if (head.vocab.whole()) return sum / static_cast<double>(head.weight.size(0));
  head.vocab.group->all_reduce(sum);
  return sum / static_cast<double>(head.vocab.total);
}

}  // namespace

at::Tensor MeanLogits::of(const models::Head& head, const at::Tensor& rows) {
  const c10::NoGradGuard no_grad;
  if (head.softcap > 0) return mean_of_capped(head, rows);
  if (!mean_row_.defined()) mean_row_ = mean_row(head);
  // The mean of the logits at a row is the row times the mean of the head's rows.
  return at::mv(rows.detach().to(at::kFloat), mean_row_);
}

}  // namespace retort::recipes
