#include "recipes/grpo/reward_kl.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "base/sizes.h"
#include "models/generation/completion_spans.h"
#include "parallel/vote.h"

namespace retort::recipes {

RewardKl take_kl_from_rewards(parallel::World& world, Rollout& rollout,
                              std::vector<GrpoMicroBatch>& batches, ReferenceQuestions& reference,
                              double beta) {
  size_t num_samples = 0;
  for (const RolloutGroup& group : rollout.groups)
    num_samples += group.samples.size();
  at::Tensor kl = at::zeros({to_int64(num_samples)}, at::kDouble);  // of each sample, by its place

  // The rows are where the pipeline ends. A stage before that learns by the vote if this fails, and
  // else waits for the sums in the broadcast. The KL of a completion is estimated by its own
  // tokens, as the sum of log p (drawn) - log p (reference).
  parallel::run_on_all(world.mp(), [&] {
    if (world.pp().rank() + 1 != world.pp().size()) return;
    for (GrpoMicroBatch& batch : batches) {
      const int64_t rows = batch.batch.num_targets();
      const at::Tensor theirs = reference.token_log_probs(batch.reference, rows).cpu();
      const at::Tensor difference = (batch.generator_logps - theirs).to(at::kDouble);
      const double* value = difference.const_data_ptr<double>();
      const int64_t* sequence = batch.sequence_of_row.const_data_ptr<int64_t>();
      double* of_sample = kl.mutable_data_ptr<double>();
      for (int64_t r = 0; r < rows; ++r)
        of_sample[batch.places.at(static_cast<size_t>(sequence[r]))] += value[r];
    }
  });
  if (world.pp().size() > 1) world.pp().broadcast(kl, static_cast<int>(world.pp().size()) - 1);

  RewardKl total;
  const double* of_sample = kl.const_data_ptr<double>();
  for (RolloutGroup& group : rollout.groups)
    for (RolloutSample& sample : group.samples) {
      const double of_this = *of_sample++;
      // A sample without a reward has none that the KL could be taken from.
      if (!sample.reward) continue;
      sample.adjustment -= beta * of_this;
      total.sum += of_this;
      total.tokens += static_cast<double>(models::num_model_tokens(sample.completion));
    }
  return total;
}

}  // namespace retort::recipes
