// Boxes of a parameter's elements: what a rank holds of it, what a part brings.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace retort::roles {

// In each dimension d the whole's indices [begin[d], begin[d] + size[d]).
struct Box {
  std::vector<int64_t> begin, size;

  int64_t numel() const;
  int64_t end(size_t d) const { return begin[d] + size[d]; }
};

// Boxes of as many dimensions each.
Box intersection(const Box& a, const Box& b);

// A view of the box in a tensor that starts at `origin` of the whole.
at::Tensor view_of(at::Tensor values, const std::vector<int64_t>& origin, const Box& box);

// True when any two have an element in common. Time: a sort, and for each box the others that cross
// its first row; boxes that are cut between rows are as many side by side as their senders.
bool any_overlap(std::vector<Box> boxes);

}  // namespace retort::roles
