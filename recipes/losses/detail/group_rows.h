// The rows that groups of tokens are made of, side by side, as the losses over them walk through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "recipes/losses/token_groups.h"

namespace retort::losses::detail {

// The rows of one side. G groups, E rows before the last ones; int64.
struct SideRows {
  at::Tensor last;     // [G] the last row of each group, in the order of the groups
  at::Tensor earlier;  // [E] the rows before those, group by group
  at::Tensor group;    // [E] whose they are
  at::Tensor others;   // rows of no group, ascending
};

struct GroupRows {
  SideRows student, teacher;
  at::Tensor weight;      // [G] float64
  at::Tensor one_to_one;  // [G] float64: 1 for a group of one row on each side, else 0
};

// On the host. kInvalidArgument, with the group: one without rows on a side, or beyond the rows
// that there are; a row in two groups; a weight that is negative or not finite.
GroupRows group_rows(const std::vector<TokenGroup>& groups, int64_t student_rows,
                     int64_t teacher_rows);
// A copy there, for which the calling thread does not wait.
GroupRows moved_to(const at::Device& device, const GroupRows& rows);

}  // namespace retort::losses::detail
