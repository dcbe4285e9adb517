// Reverse KL over spans of bytes: what a policy gradient is given where student and teacher cut the
// same text into other tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "recipes/losses/token_groups.h"

namespace retort::losses {

struct SpanAdvantages {
  // [R] float32: of each token of a group, log q(bytes of the group) - log p(bytes of the group); 0
  // for a token of no group
  at::Tensor tokens;
  // sum over the groups of log p - log q: the estimate of the reverse KL
  double reverse_kl_sum = 0;
};

// A span's log-probability is the sum of its tokens' on each side. Its difference is the reward of
// all its student's tokens, since all of them made it; where both sides have the same tokens this
// is distillation_advantages(), bit for bit.
//
// Arguments: student_logps [R], teacher_logps [Rt] float32 on the host, of the drawn tokens and of
//   the teacher's tokens for the same text. Weights of groups are not looked at.
// Errors: kInvalidArgument for shapes, dtypes, and groups outside of them.
SpanAdvantages span_advantages(const at::Tensor& student_logps, const at::Tensor& teacher_logps,
                               const std::vector<TokenGroup>& groups);

}  // namespace retort::losses
