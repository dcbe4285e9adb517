// Softmax of a chunk of rows over the columns that this rank holds, in ATen operators: on any
// device. The statistics of a row are put together by VocabGroup. Elements are float32, what is
// reduced over the ranks float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "recipes/losses/detail/vocab_group.h"

namespace retort::losses::detail {

// One side's softmax. The dense divergences have float32 columns of this rank, the coarse ones of
// top-k float64 and all columns.
struct Side {
  at::Tensor x;  // [n, columns] (logit - max) / T
  at::Tensor e;  // [n, columns] exp(x), 0 below e^-64
  // [n] float64 of e over the vocabulary (over own columns until it has been reduced)
  at::Tensor sum;
};

// [n], -inf without columns.
at::Tensor row_max(const at::Tensor& logits);
// The side whose maxima are `max` [n]; a row without any finite logit has sum 0.
Side side_below(const at::Tensor& logits, const at::Tensor& max, double inv_temperature);
// [n] of any dtype as [n, 1] of `like`'s dtype.
at::Tensor as_column(const at::Tensor& values, const at::Tensor& like);

// The student's softmax over the whole vocabulary, and what belongs to a row's target. In this
// order: construct, reduce `max`, exponentials(), reduce what sums() names, read.
class TargetSoftmax {
 public:
  // targets [n] ids of the whole vocabulary, logits [n, own columns] (already divided by a
  // temperature, if any).
  TargetSoftmax(const VocabGroup& vocab, const at::Tensor& targets, const at::Tensor& logits);
  void exponentials(const at::Tensor& logits, bool want_entropy = true);
  std::vector<at::Tensor*> sums();

  at::Tensor log_prob() const;  // [n] float64, of the target
  at::Tensor entropy() const;   // [n] float64, nats
  at::Tensor correct() const;   // [n] float64, 1 if the target is the first of the largest logits

  // out [n, own columns] = scale * softmax; scale [n] or a scalar tensor.
  void write_softmax(at::Tensor out, const at::Tensor& scale) const;
  // out[r, target] += value[r] where this rank has the target; value [n] float32.
  void add_at_target(at::Tensor out, const at::Tensor& value) const;

  at::Tensor max;  // [n] float32
  Side side;

 private:
  at::Tensor targets_, index_, owned_;  // index_: own column, any where not owned
  // the id of the first of this rank's largest logits, and that logit
  at::Tensor first_, own_max_;
  // moment_: of e x; wins_: 1 for a hit, less 1 for each rank that has as much earlier
  at::Tensor at_target_, moment_, wins_;
};

}  // namespace retort::losses::detail
