#include "recipes/run/loop/evaluate.h"

#include <c10/core/GradMode.h>

#include "base/error.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/run/loop/metric_sums.h"

namespace retort::recipes {

Evaluation evaluate(const roles::Trainer& trainer, const std::vector<data::MicroBatch>& batches,
                    parallel::World& world) {
  const c10::NoGradGuard no_grad;
  enum Value : size_t { kEntropy, kCorrect, kValues };
  StepSums sums{.values = std::vector<double>(kValues, 0.0)};
  for (const data::MicroBatch& batch : batches) {
    if (batch.num_targets() == 0) continue;
    const at::Tensor rows = trainer.hidden(models::wanting(batch.tokens, batch.predict_positions));
    if (!rows.defined()) continue;  // the pipeline ends elsewhere

    const models::Head head = trainer.decoder().head();
    const auto result = losses::unread_cross_entropy(rows, head.weight, {}, batch.targets, 0,
                                                     head.vocab, head.softcap);
    sums.count += static_cast<double>(result.count);
    sums.late.add(result.loss_sum, [&](const double* loss) { sums.loss += *loss; });
    sums.late.add(result.numbers, [&](const double* numbers) {
      const auto rows_sums = losses::CrossEntropySums::of(numbers);
      sums.values[kEntropy] += rows_sums.entropy_sum;
      sums.values[kCorrect] += static_cast<double>(rows_sums.num_correct);
    });
  }
  sums.late.read();

  // Only the ranks where the pipeline ends have formed sums; the others add nothing, but get the
  // total.
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
