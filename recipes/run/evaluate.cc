#include "recipes/run/evaluate.h"

#include <c10/core/GradMode.h>

#include "base/error.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/run/metric_sums.h"

namespace retort::recipes {

Evaluation evaluate(const roles::Trainer& trainer, const std::vector<data::MicroBatch>& batches,
                    parallel::World& world) {
  const c10::NoGradGuard no_grad;
  enum Value : size_t { kEntropy, kCorrect, kValues };
  StepSums sums{.values = std::vector<double>(kValues, 0.0)};
  for (const data::MicroBatch& batch : batches) {
    if (batch.num_targets() == 0) continue;
    const at::Tensor hidden = trainer.hidden(batch.tokens);
    if (!hidden.defined()) continue;  // the pipeline ends elsewhere

    const models::Head head = trainer.decoder().head();
    const at::Tensor rows = models::rows_at(hidden, batch.predict_positions);
    const auto result =
        losses::linear_cross_entropy(rows, head.weight, {}, batch.targets, 0, head.vocab);
    sums.loss += result.loss_sum.item<double>();
    sums.count += static_cast<double>(result.count);
    sums.values[kEntropy] += result.entropy_sum;
    sums.values[kCorrect] += static_cast<double>(result.num_correct);
  }

  // The sums of all ranks where the pipeline ends; the others add nothing.
  all_reduce(sums, world.dp_pp());
  if (sums.count == 0)
    throw Error(ErrorCode::kInvalidArgument, "the evaluation data has no target token");
  return {.loss = sums.loss / sums.count,
          .accuracy = sums.values[kCorrect] / sums.count,
          .entropy = sums.values[kEntropy] / sums.count,
          .num_tokens = static_cast<int64_t>(sums.count)};
}

MetricsRow evaluation_row(int64_t step, const Evaluation& evaluation) {
  MetricsRow row{.step = step, .values = {}};
  row.add("eval_loss", evaluation.loss)
      .add("eval_mean_token_accuracy", evaluation.accuracy)
      .add("eval_entropy", evaluation.entropy)
      .add("eval_num_tokens", evaluation.num_tokens);
  return row;
}

}  // namespace retort::recipes
