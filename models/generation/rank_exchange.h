// What the ranks of a tensor-parallel group exchange in a step of generation. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallel/group.h"

namespace retort::models {

// Every rank writes its part, all get all parts and use them in rank order. So all ranks have the
// same bits, and those of a row do not depend on how many rows there are (an all-reduce sums
// different elements in different orders).
// Use: own_part(count), write there, then add_parts or gather_parts with the same count.
// Collectives: one all-gather for each call of add_parts and gather_parts; every rank must call. A
// rank sends its part size - 1 times.
// Threads: compute.
class RankExchange {
 public:
  explicit RankExchange(parallel::Group* group) : group_(group) {}  // null: one rank

  bool active() const { return size() > 1; }
  int64_t size() const { return group_ == nullptr ? 1 : group_->size(); }
  int64_t rank() const { return group_ == nullptr ? 0 : group_->rank(); }

  // Where this rank writes its part, `count` floats, the same on every rank. Valid until the next
  // own_part.
  float* own_part(int64_t count);
  // The parts one after the other.
  const float* gather_parts(int64_t count);
  // sums[i] += the sum of the parts' element i, in rank order.
  void add_parts(float* sums, int64_t count);

 private:
  parallel::Group* group_;
  at::Tensor parts_;
};

}  // namespace retort::models
