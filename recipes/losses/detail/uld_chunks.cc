#include "recipes/losses/detail/uld_chunks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "recipes/losses/detail/aten_softmax.h"

namespace retort::losses::detail {

UldChunks::UldChunks(const VocabGroup& vocab, const UldOptions& options, const UldGroups& groups,
                     const UldDistance& distance, UldTeacher& teacher)
    : vocab_(vocab),
      options_(options),
      groups_(groups),
      distance_(distance),
      teacher_(teacher),
      whole_(parallel::VocabShard{}, vocab.total()),
      factor_((groups.weight * groups.student_product * (options.kd_weight / options.temperature))
                  .to(at::kFloat)),
      sums_(at::zeros({UldSums::kNumbers - 1}, groups.weight.options())),
      product_slopes_(at::zeros_like(groups.weight)) {}

void UldChunks::chunk(int64_t begin, int64_t count, at::Tensor logits, bool gradient) {
  const auto rows = [&](const at::Tensor& all) { return all.narrow(0, begin, count); };
  // Sorting needs whole rows. Every rank then computes the same, and keeps its own columns of the
  // gradient.
  at::Tensor z = vocab_.whole_rows(logits);
  AtOne one = at_temperature_one(z, rows(groups_.targets));
  at::Tensor p = one.p;
  if (!gradient || options_.ce_weight == 0) one.p.reset();
  if (options_.temperature != 1) p = at::softmax(z.mul_(1 / options_.temperature), 1);

  // The logits are not read any more, so what becomes their gradient may take their place.
  const UldTeacher::Chunk teacher = teacher_.chunk(begin, count);
  const UldRows distance = distance_.rows({p, rows(groups_.student_product)},
                                          {teacher.probabilities, rows(groups_.teacher_product)},
                                          teacher.rest, gradient ? z : at::Tensor());
  const at::Tensor alone = rows(groups_.one_to_one);
  sums_.add_(at::stack({distance.total * rows(groups_.weight), distance.total * alone,
                        distance.total * (1 - alone), distance.matched, distance.unmatched, one.ce,
                        one.entropy})
                 .sum(1));
  if (!gradient) return;
  to_gradient(begin, z, p, one.p);
  if (vocab_.split()) logits.copy_(z.narrow(1, vocab_.begin(), vocab_.rows()));
}

UldChunks::AtOne UldChunks::at_temperature_one(const at::Tensor& logits,
                                               const at::Tensor& targets) const {
  TargetSoftmax softmax(whole_, targets, logits);
  softmax.exponentials(logits);
  whole_.sum(softmax.sums());
  AtOne result{at::empty_like(logits), -softmax.log_prob(), softmax.entropy()};
  softmax.write_softmax(result.p, at::ones({}, softmax.side.sum.options()));
  return result;
}

void UldChunks::to_gradient(int64_t begin, at::Tensor slopes, const at::Tensor& p,
                            const at::Tensor& at_one) {
  // With x = m p, D's derivative by the logits is m p (dD/dx - s) / T, and by m it is s, which is
  // the mean of dD/dx under p.
  const int64_t count = slopes.size(0);
  const at::Tensor mean = (slopes * p).sum(1);
  product_slopes_.narrow(0, begin, count).copy_(mean);
  slopes.sub_(mean.unsqueeze(1)).mul_(p).mul_(factor_.narrow(0, begin, count).unsqueeze(1));
  if (!at_one.defined()) return;

  // The cross-entropy's derivative is softmax less one at the target.
  slopes.add_(at_one, options_.ce_weight);
  slopes.scatter_add_(1, groups_.targets.narrow(0, begin, count).unsqueeze(1),
                      at::full({count, 1}, -options_.ce_weight, slopes.options()));
}

at::Tensor UldChunks::loss_sum() const {
  return sums_.select(0, 0) * options_.kd_weight + sums_.select(0, 5) * options_.ce_weight;
}

}  // namespace retort::losses::detail
