#include "recipes/losses/detail/group_rows.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "recipes/losses/detail/linear_head.h"

namespace retort::losses::detail {
namespace {

using RowRange = std::pair<int64_t, int64_t>;

void check_range(const RowRange& range, int64_t rows, size_t group, const char* side) {
  const auto [begin, end] = range;
  if (begin >= 0 && begin < end && end <= rows) return;
  throw Error(ErrorCode::kInvalidArgument,
              "a group of tokens must have at least one row on each side, of those that are there")
      .with("group", group)
      .with("side", side)
      .with("begin", begin)
      .with("end", end)
      .with("rows", rows);
}

at::Tensor as_tensor(const std::vector<int64_t>& rows) { return at::tensor(rows, at::kLong); }

SideRows side_rows(const std::vector<RowRange>& ranges, int64_t rows, const char* side) {
  // Each row is remembered, because one in two groups would be compared twice.
  std::vector<bool> taken(static_cast<size_t>(rows));
  std::vector<int64_t> last, earlier, group, others;
  for (size_t g = 0; g < ranges.size(); ++g) {
    check_range(ranges[g], rows, g, side);
    for (int64_t row = ranges[g].first; row < ranges[g].second; ++row) {
      if (taken[static_cast<size_t>(row)])
        throw Error(ErrorCode::kInvalidArgument, "two groups of tokens share a row")
            .with("group", g)
            .with("side", side)
            .with("row", row);
      taken[static_cast<size_t>(row)] = true;
      if (row + 1 == ranges[g].second) break;
      earlier.push_back(row);
      group.push_back(static_cast<int64_t>(g));
    }
    last.push_back(ranges[g].second - 1);
  }

  for (int64_t row = 0; row < rows; ++row)
    if (!taken[static_cast<size_t>(row)]) others.push_back(row);
  return {as_tensor(last), as_tensor(earlier), as_tensor(group), as_tensor(others)};
}

SideRows side_there(const at::Device& device, const SideRows& rows) {
  return {moved_to(device, rows.last), moved_to(device, rows.earlier), moved_to(device, rows.group),
          moved_to(device, rows.others)};
}

}  // namespace

GroupRows group_rows(const std::vector<TokenGroup>& groups, int64_t student_rows,
                     int64_t teacher_rows) {
  std::vector<RowRange> student, teacher;
  std::vector<double> weight, one_to_one;
  for (const TokenGroup& group : groups) {
    if (!(group.weight >= 0 && std::isfinite(group.weight)))
      throw Error(ErrorCode::kInvalidArgument,
                  "the weight of a group of tokens must be finite and not negative")
          .with("group", weight.size())
          .with("weight", group.weight);
    student.emplace_back(group.student_begin, group.student_end);
    teacher.emplace_back(group.teacher_begin, group.teacher_end);
    weight.push_back(group.weight);
    one_to_one.push_back(group.student_end - group.student_begin == 1 &&
                         group.teacher_end - group.teacher_begin == 1);
  }
  return {side_rows(student, student_rows, "student"), side_rows(teacher, teacher_rows, "teacher"),
          at::tensor(weight, at::kDouble), at::tensor(one_to_one, at::kDouble)};
}

GroupRows moved_to(const at::Device& device, const GroupRows& rows) {
  return {side_there(device, rows.student), side_there(device, rows.teacher),
          moved_to(device, rows.weight), moved_to(device, rows.one_to_one)};
}

}  // namespace retort::losses::detail
