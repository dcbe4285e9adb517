#include "recipes/sft.h"

#include <ATen/ATen.h>

#include "recipes/losses/linear_cross_entropy.h"

namespace retort::recipes {

at::Tensor SftObjective::batch_loss(const models::Decoder& student, const data::MicroBatch& batch, StepSums& sums) {
  const at::Tensor rows = student.hidden(batch.tokens).index_select(0, batch.predict_positions);
  const auto result = losses::linear_cross_entropy(rows, student.head_weight(), {}, batch.targets);
  sums.count += static_cast<double>(result.count);
  sums.values[kEntropy] += result.entropy_sum;
  sums.values[kCorrect] += static_cast<double>(result.num_correct);
  return result.loss_sum;
}

void SftObjective::add_metrics(const StepSums& sums, MetricsRow& row) {
  row.add("entropy", sums.values[kEntropy] / sums.count);
  row.add("mean_token_accuracy", sums.values[kCorrect] / sums.count);
}

}  // namespace retort::recipes
