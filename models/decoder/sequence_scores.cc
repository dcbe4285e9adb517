#include "models/decoder/sequence_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include "base/error.h"

namespace retort::models {

int64_t score_position(std::span<const int32_t> ids, int64_t pad_token_id) {
  RETORT_CHECK(!ids.empty()) << "an empty sequence has no score";
  for (size_t i = ids.size(); i-- > 0;)
    if (ids[i] != pad_token_id) return static_cast<int64_t>(i);
  return 0;
}

at::Tensor sequence_scores(const Head& head, const at::Tensor& rows) {
  // Every rank has the whole head, but backward sums the gradient of the rows over the ranks. So
  // every rank takes part, and only the first one counts: the others add a product with 0.
  const bool counts = head.copies == nullptr || head.copies->rank() == 0;
  const at::Tensor own = counts ? rows : rows.detach() + rows * 0;
  return at::matmul(own.to(at::kFloat), head.weight.to(at::kFloat).t());
}

}  // namespace retort::models
