#include "recipes/sft.h"

#include <ATen/ATen.h>

#include "recipes/losses/linear_cross_entropy.h"

namespace retort::recipes {

at::Tensor SftObjective::loss_sum(const models::Decoder& student, const data::MicroBatch& batch, size_t, StepSums& sums) {
  const at::Tensor rows = student.hidden(batch.tokens).index_select(0, batch.predict_positions);
  const auto result = losses::linear_cross_entropy(rows, student.head_weight(), {}, batch.targets);
  sums.count += static_cast<double>(result.count);
  sums.ce += result.loss_sum.item<double>();
  sums.entropy += result.entropy_sum;
  sums.correct += static_cast<double>(result.num_correct);
  return result.loss_sum;
}

}  // namespace retort::recipes
