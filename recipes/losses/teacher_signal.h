// What a loss knows of the teacher at R target positions. Shapes: R rows (positions with targets),
// Ht the teacher's hidden size, Vt its vocabulary, K the top-k size. Devices: linear_distill.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <variant>

namespace retort::losses {

// Final-norm hidden states and the teacher's head; its logits are formed chunk by chunk in fp32.
struct TeacherHidden {
  at::Tensor hidden;  // [R, Ht] any float dtype
  at::Tensor weight;  // [Vt, Ht]
  at::Tensor bias;    // [Vt] or undefined
};

// Log-probabilities at K ids, whosever they are, at the request's temperature over the common
// vocabulary, and the log of the remaining mass. The ids are constants: they have no gradient.
struct TeacherTopK {
  at::Tensor ids;       // [R, K] int32, distinct in a row
  at::Tensor logps;     // [R, K] float32 or bfloat16
  at::Tensor log_tail;  // [R] float32, logsumexp over the complement; -inf when K = V
  // Rows may name fewer ids: they end with -1, whose logps are -inf.
  bool padded = false;
};

// All log-probabilities at the request's temperature over the common vocabulary.
struct TeacherFull {
  at::Tensor logps;  // [R, V] float32
};

// Ids drawn from the distribution at the request's temperature over the common vocabulary. The loss
// is an unbiased estimate of forward KL: other divergences are refused.
struct TeacherSampled {
  at::Tensor ids;    // [R, N] int32
  at::Tensor logps;  // [R, N] float32, log q of each
  // [R] float32: the (N+1)-th largest of log q + Gumbel noise, of ids drawn without replacement;
  // undefined: with replacement
  at::Tensor kappa;
};

using TeacherSignal = std::variant<TeacherHidden, TeacherTopK, TeacherFull, TeacherSampled>;

}  // namespace retort::losses
