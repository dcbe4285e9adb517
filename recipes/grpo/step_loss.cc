// The loss of a step's micro-batches, and what the step tells of itself.
#include "recipes/grpo/objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "parallel/vote.h"
#include "recipes/grpo/student_rows.h"
#include "recipes/losses/high_entropy.h"
#include "recipes/losses/host_rows.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rollout/drawn_ids.h"

namespace retort::recipes {

// What the loss is divided by is made of this.
void GrpoObjective::count(const GrpoMicroBatch& batch, StepSums& sums) {
  const UncomputedSamples& left_out = batch.left_out;
  const UncomputedSamples& masked = batch.masked;
  const int64_t rows = batch.batch.num_targets();
  sums.count += static_cast<double>(rows + left_out.rows);
  sums.num_tokens +=
      static_cast<double>(batch.batch.tokens.num_tokens() + left_out.tokens + masked.tokens);
  sums.values[kSequences] +=
      static_cast<double>(batch.advantages.numel() + left_out.samples + masked.samples);
  sums.values[kRows] += static_cast<double>(rows);
  if (batch.high_entropy.defined())
    sums.values[kHighEntropy] += batch.high_entropy.sum().item<double>();
  sums.values[kWithoutSignal] += static_cast<double>(left_out.samples);
}

// Marks the tokens whose entropy belongs to the highest of the step's, on all ranks and in all
// micro-batches: one forward pass says them before the first loss.
void GrpoObjective::mark_high_entropy(parallel::Group& dp) {
  std::vector<at::Tensor> entropies;
  parallel::run_on_all(world_.all(), [&] {
    for (size_t index = 0; index < info_.micro_batches; ++index)
      entropies.push_back(
          student_rows(trainer_, batch(index), options_.temperature, options_.num_ids).entropy);
  });
  if (world_.pp().rank() + 1 != world_.pp().size()) return;  // the losses are formed elsewhere

  // Every rank's entropies, of which none is negative.
  constexpr float kNone = -1;
  at::Tensor mine = at::cat(entropies);
  if (dp.size() > 1) {
    at::Tensor longest = at::tensor({mine.numel()}, at::kLong);
    dp.all_reduce(longest, parallel::ReduceOp::kMax);
    at::Tensor padded = at::full({longest.item<int64_t>()}, kNone, at::kFloat);
    padded.narrow(0, 0, mine.numel()).copy_(mine);
    mine = dp.all_gather(padded).flatten();
  }
  std::vector<float> all;
  const at::Tensor flat = mine.contiguous();
  const float* value = flat.const_data_ptr<float>();
  std::copy_if(value, value + flat.numel(), std::back_inserter(all),
               [](float entropy) { return entropy != kNone; });

  const float threshold =
      losses::entropy_threshold(std::move(all), options_.grpo.top_entropy_quantile);
  for (size_t index = 0; index < info_.micro_batches; ++index)
    batch(index).high_entropy = entropies[index].lt(threshold).logical_not();
}

// The entropy is a mean over tokens whatever the loss is divided by (as in TRL 1.9): its weight in
// a sum follows from what the step's samples count.
void GrpoObjective::begin_step(parallel::Group& dp) {
  if (options_.grpo.picks_tokens()) mark_high_entropy(dp);
  if (options_.grpo.entropy_coef == 0) return;
  StepSums sums;
  sums.values.resize(kValues, 0.0);
  for (size_t index = 0; index < info_.micro_batches; ++index)
    count(batch(index), sums);
  const double picked = options_.grpo.picks_tokens() ? sums.values[kHighEntropy] : sums.count;
  at::Tensor all = at::tensor({sums.count, sums.values[kSequences], picked}, at::kDouble);
  if (dp.size() > 1) dp.all_reduce(all);
  const double* of_all = all.const_data_ptr<double>();
  sums.count = of_all[0];
  sums.values[kSequences] = of_all[1];
  entropy_weight_ = options_.grpo.entropy_coef * divisor(sums) / std::max(1.0, of_all[2]);
}

at::Tensor GrpoObjective::loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                                   StepSums& sums) {
  GrpoMicroBatch& batch = this->batch(index);
  const auto logps = losses::linear_log_probs(
      hidden, head.weight, bias_of_drawn_ids(head, options_.num_ids), batch.batch.targets,
      {.temperature = options_.temperature,
       .entropy = true,
       .entropy_gradient = options_.grpo.entropy_coef > 0},
      head.vocab, head.softcap);
  const losses::PolicyOptions policy = options_.grpo.policy();
  if (policy.beta > 0 && !batch.reference_logps.defined())
    batch.reference_logps = reference_->token_log_probs(batch.reference, batch.batch.num_targets());

  // Two numbers a token: from here on in host memory.
  const std::vector<at::Tensor> here = losses::in_host_memory({logps.log_probs, logps.entropy});
  const at::Tensor& log_probs = here[0];
  losses::PolicyInputs inputs{.policy_logps = log_probs,
                              .old_logps = batch.old_logps,
                              .reference_logps = {},
                              .generator_logps = {},
                              .sequence_of_row = batch.sequence_of_row,
                              .advantages = batch.advantages,
                              .token_advantages = {},
                              .surrogate_mask = batch.high_entropy,
                              .num_sequences = batch.advantages.numel()};
  if (policy.beta > 0) inputs.reference_logps = batch.reference_logps;

  // The ratio may be to the policy that drew the samples, as its generator reported it.
  const bool corrected = options_.grpo.correction() != losses::SamplingCorrection::kNone;
  if (options_.grpo.ratio_to_generator()) inputs.old_logps = batch.generator_logps;
  if (corrected) inputs.generator_logps = batch.generator_logps;

  const losses::PolicyResult result = losses::policy_loss(inputs, policy);
  if (!batch.old_logps.defined() && options_.grpo.num_iterations > 1)
    batch.old_logps = log_probs.detach();

  count(batch, sums);
  sums.values[kKl] += result.kl_sum;
  sums.values[kClipLow] += result.clip_low_sum;
  sums.values[kClipHigh] += result.clip_high_sum;
  sums.values[kClipRegion] += result.clip_region_sum;
  sums.values[kClipDelta] += result.clip_delta_sum;
  sums.values[kClipCount] += static_cast<double>(result.clip_count);
  sums.values[kOffPolicyMasked] += static_cast<double>(result.off_policy_masked);
  sums.values[kEntropy] += here[1].detach().to(at::kDouble).sum().item<double>();
  sums.values[kRatio] += result.sampling_ratio_sum;
  sums.values[kRatioSquare] += result.sampling_ratio_square_sum;
  sums.values[kDrawnDifference] += result.sampling_logp_difference_sum;
  sums.values[kRatioCount] += static_cast<double>(result.sampling_ratio_count);
  sums.values[kDrawnLogp] += batch.generator_logps.to(at::kDouble).sum().item<double>();
  if (options_.grpo.entropy_coef == 0) return result.loss_sum;
  if (!batch.high_entropy.defined()) return result.loss_sum - entropy_weight_ * logps.entropy.sum();
  const at::Tensor picked = batch.high_entropy.to(logps.entropy.options());
  return result.loss_sum - entropy_weight_ * (logps.entropy * picked).sum();
}

double GrpoObjective::divisor(const StepSums& sums) const {
  return losses::policy_divisor(options_.grpo.loss_type,
                                {.sequences = static_cast<int64_t>(sums.values[kSequences]),
                                 .tokens = static_cast<int64_t>(sums.count),
                                 .max_completion_tokens = options_.max_new_tokens});
}

void GrpoObjective::finish_step(const StepSums& sums, MetricsRow& row) {
  const double tokens = std::max(1.0, sums.values[kRows]);
  const double ratios = std::max(1.0, sums.values[kClipCount]);
  row.values.insert(row.values.end(), round_metrics_.values.begin(), round_metrics_.values.end());

  // Each step on the same samples is one more behind the weights that drew them.
  const auto version = static_cast<int64_t>(weight_version_);
  row.add("weight_version", version).add("staleness", row.step - version);
  row.add("frac_without_signal",
          sums.values[kWithoutSignal] / std::max(1.0, sums.values[kSequences]));

  // What the loss is made of. Of none there is no mean.
  row.add("entropy", sums.values[kRows] > 0 ? sums.values[kEntropy] / tokens
                                            : std::numeric_limits<double>::quiet_NaN());
  if (options_.grpo.policy().beta > 0) row.add("kl", sums.values[kKl] / tokens);
  if (options_.grpo.picks_tokens())
    row.add("frac_high_entropy", sums.values[kHighEntropy] / tokens);
  row.add("clip_ratio/low_mean", sums.values[kClipLow] / ratios);
  row.add("clip_ratio/high_mean", sums.values[kClipHigh] / ratios);
  row.add("clip_ratio/region_mean", sums.values[kClipRegion] / ratios);
  if (options_.grpo.delta) row.add("clip_ratio/delta_mean", sums.values[kClipDelta] / ratios);
  if (options_.grpo.off_policy_mask_threshold)
    row.add("frac_off_policy_masked",
            sums.values[kOffPolicyMasked] / std::max(1.0, sums.values[kSequences]));

  // How far generator and trainer agree.
  if (sums.values[kRatioCount] == 0) return;
  row.add("sampling_ratio/mean", sums.values[kRatio] / sums.values[kRatioCount]);
  row.add("sampling_ratio/effective_sample_size",
          sums.values[kRatioSquare] > 0 ? sums.values[kRatio] * sums.values[kRatio] /
                                              (sums.values[kRatioCount] * sums.values[kRatioSquare])
                                        : 0);
  row.add("sampling_logp_difference/mean", sums.values[kDrawnDifference] / tokens);
  // Of tokens drawn from the trainer's own distributions -log p is their entropy on average.
  row.add("sampling_surprise/mean", -(sums.values[kDrawnLogp] + sums.values[kEntropy]) / tokens);
}

}  // namespace retort::recipes
