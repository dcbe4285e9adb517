#include "recipes/run/loop/batch_objective.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>

#include "base/error.h"

namespace retort::recipes {

void Objective::begin_step(parallel::Group&) {}

void BatchObjective::announce(int64_t, const data::BatchStream::Step&) {}

StepInfo BatchObjective::next_step(int64_t step) {
  drawn_.push_back(source_(step));
  announce(step, drawn_.back());
  // The losses read the rows of the predicted positions alone, so the last layer need not compute
  // others.
  for (data::MicroBatch& batch : drawn_.back().micro_batches)
    batch.tokens.wanted = batch.predict_positions;
  return {.micro_batches = drawn_.back().micro_batches.size(),
          .after = drawn_.back().after,
          .epoch = drawn_.back().epoch,
          .data_wait_time = drawn_.back().waited};
}

std::string BatchObjective::origins(size_t index) const {
  return list_origins(drawn_.front().micro_batches.at(index).samples);
}

at::Tensor BatchObjective::loss_sum(const models::Head& head, const at::Tensor& hidden,
                                    size_t index, StepSums& sums) {
  RETORT_CHECK(!drawn_.empty()) << "loss_sum of a step that was not drawn";
  const data::MicroBatch& batch = drawn_.front().micro_batches.at(index);
  sums.num_tokens += static_cast<double>(batch.tokens.num_tokens());
  sums.num_truncated += count_truncated(batch.samples);
  return batch_loss(head, hidden, batch, sums);
}

void BatchObjective::finish_step(const StepSums& sums, MetricsRow& row) {
  drawn_.pop_front();
  row.add("num_truncated", static_cast<int64_t>(sums.num_truncated));
  add_metrics(sums, row);
  if (also_add_) also_add_(row);
}

}  // namespace retort::recipes
