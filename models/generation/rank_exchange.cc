#include "models/generation/rank_exchange.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace retort::models {

float* RankExchange::own_part(int64_t count) {
  if (!parts_.defined() || parts_.numel() < size() * count) {
    const c10::InferenceMode ordinary(false);  // the group writes into it
    parts_ = at::empty({size() * count}, at::TensorOptions().dtype(at::kFloat));
  }
  return parts_.mutable_data_ptr<float>() + rank() * count;
}

const float* RankExchange::gather_parts(int64_t count) {
  const c10::InferenceMode ordinary(false);
  const c10::NoGradGuard no_grad;
  at::Tensor all = parts_.narrow(0, 0, size() * count);
  group_->all_gather_into(all, all.narrow(0, rank() * count, count));
  return parts_.const_data_ptr<float>();
}

void RankExchange::add_parts(float* sums, int64_t count) {
  const float* parts = gather_parts(count);
  constexpr int64_t kPiece = 1024;  // stays in the cache while the ranks are summed
  float total[kPiece];
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size_here = count - begin < kPiece ? count - begin : kPiece;
    for (int64_t i = 0; i < size_here; ++i)
      total[i] = parts[begin + i];
    for (int64_t r = 1; r < size(); ++r)
      for (int64_t i = 0; i < size_here; ++i)
        total[i] += parts[r * count + begin + i];
    for (int64_t i = 0; i < size_here; ++i)
      sums[begin + i] += total[i];
  }
}

}  // namespace retort::models
