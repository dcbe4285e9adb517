#include "recipes/losses/detail/aten_softmax.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nansum.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <tuple>

namespace retort::losses::detail {
namespace {

constexpr double kSmallest = 1.6e-28;  // e^-64, as in the row kernels
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

at::Tensor row_max(const at::Tensor& logits) {
  return logits.size(1) > 0 ? logits.amax(1)
                            : at::full({logits.size(0)}, -kInfinity, logits.options());
}

Side side_below(const at::Tensor& logits, const at::Tensor& max, double inv_temperature) {
  Side side;
  // A row without any finite logit has the maximum -inf, and -inf less -inf would be NaN.
  side.x = logits - max.masked_fill(max == -kInfinity, 0).unsqueeze(1);
  if (inv_temperature != 1) side.x.mul_(inv_temperature);
  side.e = side.x.exp();
  at::threshold_(side.e, kSmallest, 0);
  side.sum = side.e.sum(1).to(at::kDouble);
  return side;
}

at::Tensor as_column(const at::Tensor& values, const at::Tensor& like) {
  return values.to(like.scalar_type()).unsqueeze(1);
}

TargetSoftmax::TargetSoftmax(const VocabGroup& vocab, const at::Tensor& targets,
                             const at::Tensor& logits)
    : targets_(targets) {
  const at::Tensor local = targets - vocab.begin();
  owned_ = (local >= 0).logical_and_(local < vocab.rows());
  index_ = local.masked_fill(owned_.logical_not(), 0).unsqueeze(1);

  // A rank without columns has the maximum -inf and an id beyond all others, so it loses against
  // every other rank.
  if (vocab.rows() > 0) {
    std::tie(own_max_, first_) = logits.max(1);
    first_ = first_ + vocab.begin();
  } else {
    own_max_ = row_max(logits);
    first_ = at::full({logits.size(0)}, vocab.total(), targets.options());
  }
  max = own_max_;
}

void TargetSoftmax::exponentials(const at::Tensor& logits, bool want_entropy) {
  side = side_below(logits, max, 1);
  if (logits.size(1) > 0)
    at_target_ = (logits.gather(1, index_).squeeze(1).to(at::kDouble) - max)
                     .masked_fill_(owned_.logical_not(), 0);
  else
    at_target_ = at::zeros({logits.size(0)}, side.sum.options());

  // An excluded id is 0 times -infinity here, NaN, and is left out. A row that is NaN still shows
  // it, in its sum.
  moment_ = want_entropy ? at::nansum(side.x * side.e, 1) : at::Tensor();
  wins_ = ((first_ == targets_).to(at::kFloat) - (first_ < targets_).to(at::kFloat))
              .masked_fill_(own_max_ != max, 0);
}

std::vector<at::Tensor*> TargetSoftmax::sums() {
  std::vector<at::Tensor*> columns{&side.sum, &at_target_, &wins_};
  if (moment_.defined()) columns.push_back(&moment_);
  return columns;
}

at::Tensor TargetSoftmax::log_prob() const { return at_target_ - side.sum.log(); }

at::Tensor TargetSoftmax::entropy() const { return side.sum.log() - moment_ / side.sum; }

at::Tensor TargetSoftmax::correct() const { return (wins_ == 1).to(at::kDouble); }

void TargetSoftmax::write_softmax(at::Tensor out, const at::Tensor& scale) const {
  at::mul_out(out, side.e, as_column(scale / side.sum, side.e));
}

void TargetSoftmax::add_at_target(at::Tensor out, const at::Tensor& value) const {
  if (out.size(1) > 0)
    out.scatter_add_(1, index_, value.masked_fill(owned_.logical_not(), 0).unsqueeze(1));
}

}  // namespace retort::losses::detail
