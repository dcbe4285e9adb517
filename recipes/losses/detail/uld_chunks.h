// ULD and GOLD of the groups' last rows, a chunk of logits at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "recipes/losses/detail/linear_head.h"
#include "recipes/losses/detail/uld_distance.h"
#include "recipes/losses/detail/uld_teacher.h"
#include "recipes/losses/detail/vocab_group.h"

namespace retort::losses::detail {

// The groups, [G] each on the device of the logits.
struct UldGroups {
  at::Tensor targets;          // int64: the token that the student's last row predicts
  at::Tensor student_product;  // float32: m, the probability of the student's earlier tokens
  at::Tensor teacher_product;  // likewise
  at::Tensor weight;           // float64
  at::Tensor one_to_one;       // float64: 1 for one token on each side, else 0
};

// Row g of the head is the last row of group g. What it is given must outlive it.
//
// Collectives: with a split vocabulary an all-gather of the logits a chunk, and the teacher's.
class UldChunks : public ChunkLoss {
 public:
  UldChunks(const VocabGroup& vocab, const UldOptions& options, const UldGroups& groups,
            const UldDistance& distance, UldTeacher& teacher);

  void chunk(int64_t begin, int64_t count, at::Tensor logits, bool gradient) override;
  // float64: kd_weight sum_g weight_g D_g + ce_weight CE.
  at::Tensor loss_sum() const override;
  // [7] float64: the numbers of UldSums in their order, of these rows.
  const at::Tensor& sums() const { return sums_; }
  // [G] float64: the derivative of D_g by m, known after a pass with a gradient.
  const at::Tensor& product_slopes() const { return product_slopes_; }

 private:
  // The student's distribution at temperature 1.
  struct AtOne {
    at::Tensor p;            // [n, V] float32
    at::Tensor ce, entropy;  // [n] float64
  };
  AtOne at_temperature_one(const at::Tensor& logits, const at::Tensor& targets) const;
  // `slopes` [n, V], the derivative of D by the merged probabilities, becomes the gradient of the
  // loss by the logits; `at_one` is undefined without cross-entropy.
  void to_gradient(int64_t begin, at::Tensor slopes, const at::Tensor& p, const at::Tensor& at_one);

  const VocabGroup& vocab_;
  const UldOptions& options_;
  const UldGroups& groups_;
  const UldDistance& distance_;
  UldTeacher& teacher_;
  VocabGroup whole_;   // the same ids on this rank alone, as the rows are gathered
  at::Tensor factor_;  // [G] float32: of a group's gradient by its logits
  at::Tensor sums_, product_slopes_;
};

}  // namespace retort::losses::detail
