#include "recipes/losses/sequence_sums.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace retort::losses {

at::Tensor sum_by_sequence(const at::Tensor& values, const at::Tensor& sequence_of_row,
                           int64_t num_sequences) {
  const at::Tensor zeros =
      at::zeros({num_sequences}, values.options().dtype(at::kDouble).requires_grad(false));
  return zeros.index_add(0, sequence_of_row, values.to(at::kDouble)).to(at::kFloat);
}

}  // namespace retort::losses
