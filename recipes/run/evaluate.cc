#include "recipes/run/evaluate.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "base/error.h"
#include "recipes/losses/linear_cross_entropy.h"

namespace retort::recipes {

Evaluation evaluate(const roles::Trainer& trainer, const std::vector<data::MicroBatch>& batches,
                    parallel::World& world) {
  c10::NoGradGuard no_grad;
  at::Tensor sums = at::zeros({4}, at::kDouble);  // loss, correct, entropy, count
  double* sum = sums.mutable_data_ptr<double>();
  for (const data::MicroBatch& batch : batches) {
    if (batch.num_targets() == 0) continue;
    const at::Tensor hidden = trainer.hidden(batch.tokens);
    if (!hidden.defined()) continue;  // the pipeline ends elsewhere
    const models::Head head = trainer.decoder().head();
    const at::Tensor rows = models::rows_at(hidden, batch.predict_positions);
    const auto result =
        losses::linear_cross_entropy(rows, head.weight, {}, batch.targets, 0, head.vocab);
    sum[0] += result.loss_sum.item<double>();
    sum[1] += static_cast<double>(result.num_correct);
    sum[2] += result.entropy_sum;
    sum[3] += static_cast<double>(result.count);
  }
  world.dp_pp().all_reduce(sums);
  if (sum[3] == 0)
    throw Error(ErrorCode::kInvalidArgument, "the evaluation data has no target token");
  return {.loss = sum[0] / sum[3],
          .accuracy = sum[1] / sum[3],
          .entropy = sum[2] / sum[3],
          .num_tokens = static_cast<int64_t>(sum[3])};
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
