#include "recipes/sft/objective.h"

#include <ATen/core/Tensor.h>

#include <array>

#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/run/loop/metric_sums.h"

namespace retort::recipes {

at::Tensor SftObjective::batch_loss(const models::Head& head, const at::Tensor& rows,
                                    const data::MicroBatch& batch, StepSums& sums) {
  const auto result = losses::unread_cross_entropy(rows, head.weight, {}, batch.targets, 0,
                                                   head.vocab, head.softcap, type_);
  sums.count += static_cast<double>(result.count);
  sums.late.add(result.numbers, [&sums](const double* numbers) {
    const auto of_rows = losses::CrossEntropySums::of(numbers);
    sums.values[kEntropy] += of_rows.entropy_sum;
    sums.values[kCorrect] += static_cast<double>(of_rows.num_correct);
  });
  return result.loss_sum;
}

void SftObjective::add_metrics(const StepSums& sums, MetricsRow& row) {
  static constexpr std::array<MeanMetric, 2> kMetrics{
      {{"entropy", kEntropy}, {"mean_token_accuracy", kCorrect}}};
  add_means(kMetrics, sums, sums.count, row);
}

}  // namespace retort::recipes
