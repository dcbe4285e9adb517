// The distances of ULD and GOLD between a group's two distributions, and their derivatives by the
// student's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "recipes/losses/detail/sorted_distance.h"
#include "recipes/losses/linear_uld.h"

namespace retort::losses::detail {

// The distances of a chunk's groups, [n] float64 each.
struct UldRows {
  at::Tensor total;
  at::Tensor matched, unmatched;  // the parts of GOLD without their weights; else zeros
};

class UldDistance {
 public:
  virtual ~UldDistance() = default;
  // Of x [n, V] from y [n, Vt]. `rest` [n] float32: what y has beyond its columns, as one number;
  // undefined: nothing. `slopes`, [n, V] contiguous float32 unless undefined, becomes the
  // derivative of the total by x's scaled probabilities; it may be destroyed before.
  virtual UldRows rows(const ScaledRows& x, const ScaledRows& y, const at::Tensor& rest,
                       at::Tensor slopes) const = 0;
};

// `vocab`: ids of the student; `teacher_ids`: those of the teacher that take part; both are read
// for GOLD alone, whose ids are on `device` from then on.
std::unique_ptr<UldDistance> make_uld_distance(const UldOptions& options, int64_t vocab,
                                               int64_t teacher_ids, bool top_k,
                                               const at::Device& device);
// kInvalidArgument: an id in options.matched that no vocabulary has, or that stands there twice.
void check_matched_ids(const UldOptions& options, int64_t vocab, int64_t teacher_ids);

}  // namespace retort::losses::detail
