#include "recipes/losses/span_advantages.h"

#include <ATen/ops/zeros.h>

#include <string>

#include "base/error.h"
#include "recipes/losses/detail/vector_arguments.h"

namespace retort::losses {
namespace {

using detail::FloatVector;

double sum_of(const FloatVector& values, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t i = begin; i < end; ++i)
    sum += values[i];
  return sum;
}

void check_group(const TokenGroup& group, int64_t student, int64_t teacher) {
  const bool fits = group.student_begin >= 0 && group.student_begin < group.student_end &&
                    group.student_end <= student && group.teacher_begin >= 0 &&
                    group.teacher_begin < group.teacher_end && group.teacher_end <= teacher;
  if (!fits)
    throw Error(ErrorCode::kInvalidArgument, "a group must have rows of both sides, of " +
                                                 std::to_string(student) + " and " +
                                                 std::to_string(teacher));
}

}  // namespace

SpanAdvantages span_advantages(const at::Tensor& student_logps, const at::Tensor& teacher_logps,
                               const std::vector<TokenGroup>& groups) {
  for (const at::Tensor* logps : {&student_logps, &teacher_logps})
    if (!logps->defined() || logps->dim() != 1)
      throw Error(ErrorCode::kInvalidArgument,
                  "log-probabilities must be one float32 for each token of a side");
  detail::require_vector(student_logps, "student_logps", student_logps.size(0));
  detail::require_vector(teacher_logps, "teacher_logps", teacher_logps.size(0));

  const FloatVector student(student_logps), teacher(teacher_logps);
  SpanAdvantages spans{.tokens = at::zeros({student_logps.size(0)}, at::kFloat)};
  float* out = spans.tokens.data_ptr<float>();
  for (const TokenGroup& group : groups) {
    check_group(group, student_logps.size(0), teacher_logps.size(0));
    const auto advantage =
        static_cast<float>(sum_of(teacher, group.teacher_begin, group.teacher_end) -
                           sum_of(student, group.student_begin, group.student_end));
    for (int64_t r = group.student_begin; r < group.student_end; ++r)
      out[r] = advantage;
    spans.reverse_kl_sum -= advantage;
  }
  return spans;
}

}  // namespace retort::losses
