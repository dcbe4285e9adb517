#include "recipes/run/mean_logits.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mv.h>
#include <c10/core/GradMode.h>

namespace retort::recipes {
namespace {

// The mean over the vocabulary of the head's rows [H].
at::Tensor mean_row(const models::Head& head) {
  // On a device elements are converted as they are summed, on the host before.
  at::Tensor weight = head.weight.detach();
  if (weight.is_cpu()) weight = weight.to(at::kFloat);
  if (head.vocab.whole()) return weight.mean(0, /*keepdim=*/false, at::kFloat);
  at::Tensor sum = weight.sum(0, /*keepdim=*/false, at::kFloat);
  head.vocab.group->all_reduce(sum);
  return sum / static_cast<double>(head.vocab.total);
}

}  // namespace

at::Tensor MeanLogits::of(const models::Head& head, const at::Tensor& rows) {
  const c10::NoGradGuard no_grad;
  if (!mean_row_.defined()) mean_row_ = mean_row(head);
  // The mean of the logits at a row is the row times the mean of the head's rows.
  return at::mv(rows.detach().to(at::kFloat), mean_row_);
}

}  // namespace retort::recipes
