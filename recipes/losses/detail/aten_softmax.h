// Softmax of a chunk of rows over the columns that this rank holds, for the ATen path
// (aten_losses.h). The statistics of a row are put together by VocabGroup: with a whole vocabulary
// this rank's are the row's already. Elements are float32, what is reduced over the ranks float64.
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

// The student's softmax over the whole vocabulary, and what belongs to a row's target.
//
// Use: the calls come in this order, `vocab` being the VocabGroup:
//   TargetSoftmax softmax(vocab, targets, logits);
//   vocab.max({&softmax.max});
//   softmax.exponentials(logits);
//   vocab.sum(softmax.sums());
//   ... softmax.log_prob() ...
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
  at::Tensor targets_;
  at::Tensor owned_;    // [n] whether this rank has the target's column
  at::Tensor index_;    // [n, 1] that column among this rank's; any column where it has none
  at::Tensor first_;    // [n] the id of the first of this rank's largest logits
  at::Tensor own_max_;  // [n] that logit
  // Sums over the ranks, [n] each:
  at::Tensor at_target_;  // the target's x
  at::Tensor moment_;     // of e x
  // 1 where the target is a rank's first largest logit, less 1 for each rank that has as large a
  // one at an earlier id: 1 in the end where the target is the row's argmax
  at::Tensor wins_;
};

}  // namespace retort::losses::detail
