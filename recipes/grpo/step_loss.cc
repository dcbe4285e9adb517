#include "recipes/grpo/step_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/vote.h"
#include "recipes/grpo/student_rows.h"
#include "recipes/losses/high_entropy.h"
#include "recipes/losses/host_rows.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rollout/drawn_ids.h"

namespace retort::recipes {
namespace {

// These are the sums of a step, in the order in which the ranks add them.
struct GrpoSum {
  enum Value : size_t {
    kSequences,
    kRows,  // tokens that were trained on
    kWithoutSignal,
    kKl,
    kClipLow,
    kClipHigh,
    kClipRegion,
    kClipDelta,
    kClipCount,
    kOffPolicyMasked,
    kEntropy,
    kHighEntropy,  // tokens
    kRatio,
    kRatioCount,
    kRatioSquare,
    kDrawnDifference,
    kDrawnLogp,
    kValues
  };
};

// A sum of the loss, and the metric that it becomes.
struct LossSum {
  GrpoSum::Value sum;
  // What a micro-batch adds, of the result of its loss; null: more than the loss knows of it.
  double (*of)(const losses::PolicyResult&) = nullptr;
  std::string_view name = {};                     // "": it is a part of other metrics
  GrpoSum::Value per = GrpoSum::kRows;            // what the metric is a mean over
  bool (*is_told)(const GrpoOptions&) = nullptr;  // null: always
};

// The metrics stand in the order of a row.
constexpr std::array kLossSums{
    // What the samples are like, whatever the loss.
    LossSum{
        .sum = GrpoSum::kWithoutSignal, .name = "frac_without_signal", .per = GrpoSum::kSequences},
    LossSum{.sum = GrpoSum::kEntropy, .name = "entropy"},

    // Of the KL term and the choice of tokens, which a recipe may leave out.
    LossSum{.sum = GrpoSum::kKl,
            .of = [](const auto& result) { return result.kl_sum; },
            .name = "kl",
            .is_told = [](const auto& grpo) { return grpo.policy().beta > 0; }},
    LossSum{.sum = GrpoSum::kHighEntropy,
            .name = "frac_high_entropy",
            .is_told = [](const auto& grpo) { return grpo.picks_tokens(); }},

    // Where the ratio was clipped, of all rows that could be.
    LossSum{.sum = GrpoSum::kClipLow,
            .of = [](const auto& result) { return result.clip_low_sum; },
            .name = "clip_ratio/low_mean",
            .per = GrpoSum::kClipCount},
    LossSum{.sum = GrpoSum::kClipHigh,
            .of = [](const auto& result) { return result.clip_high_sum; },
            .name = "clip_ratio/high_mean",
            .per = GrpoSum::kClipCount},
    LossSum{.sum = GrpoSum::kClipRegion,
            .of = [](const auto& result) { return result.clip_region_sum; },
            .name = "clip_ratio/region_mean",
            .per = GrpoSum::kClipCount},
    LossSum{.sum = GrpoSum::kClipDelta,
            .of = [](const auto& result) { return result.clip_delta_sum; },
            .name = "clip_ratio/delta_mean",
            .per = GrpoSum::kClipCount,
            .is_told = [](const auto& grpo) { return grpo.delta.has_value(); }},

    // Sequences that the loss leaves out.
    LossSum{.sum = GrpoSum::kOffPolicyMasked,
            .of = [](const auto& result) { return static_cast<double>(result.off_policy_masked); },
            .name = "frac_off_policy_masked",
            .per = GrpoSum::kSequences,
            .is_told = [](const auto& grpo) { return grpo.off_policy_mask_threshold.has_value(); }},

    // What others above are means over.
    LossSum{.sum = GrpoSum::kClipCount,
            .of = [](const auto& result) { return static_cast<double>(result.clip_count); }},
};

// How far generator and trainer agree: told where there are ratios.
constexpr std::array kSamplingSums{
    LossSum{.sum = GrpoSum::kRatio,
            .of = [](const auto& result) { return result.sampling_ratio_sum; }},
    LossSum{.sum = GrpoSum::kRatioSquare,
            .of = [](const auto& result) { return result.sampling_ratio_square_sum; }},
    LossSum{.sum = GrpoSum::kDrawnDifference,
            .of = [](const auto& result) { return result.sampling_logp_difference_sum; }},
    LossSum{
        .sum = GrpoSum::kRatioCount,
        .of = [](const auto& result) { return static_cast<double>(result.sampling_ratio_count); }},
};

void add_sums(std::span<const LossSum> all, const losses::PolicyResult& result, StepSums& sums) {
  for (const LossSum& one : all)
    if (one.of != nullptr) sums.values[one.sum] += one.of(result);
}

// Counts what the loss is divided by, so samples that are left out of the forward pass count as
// well.
void count_samples(const GrpoMicroBatch& batch, StepSums& sums) {
  const UncomputedSamples& left_out = batch.left_out;
  const UncomputedSamples& masked = batch.masked;
  const int64_t rows = batch.batch.num_targets();
  sums.count += static_cast<double>(rows + left_out.rows);
  sums.num_tokens +=
      static_cast<double>(batch.batch.tokens.num_tokens() + left_out.tokens + masked.tokens);
  sums.values[GrpoSum::kSequences] +=
      static_cast<double>(batch.advantages.numel() + left_out.samples + masked.samples);
  sums.values[GrpoSum::kRows] += static_cast<double>(rows);
  if (batch.high_entropy.defined())
    sums.values[GrpoSum::kHighEntropy] += batch.high_entropy.sum().item<double>();
  sums.values[GrpoSum::kWithoutSignal] += static_cast<double>(left_out.samples);
}

// The ratio may be to the policy that drew the samples, as its generator reported it.
losses::PolicyInputs policy_inputs(const GrpoMicroBatch& batch, const at::Tensor& log_probs,
                                   const GrpoOptions& grpo) {
  losses::PolicyInputs inputs{.policy_logps = log_probs,
                              .old_logps = batch.old_logps,
                              .reference_logps = {},
                              .generator_logps = {},
                              .sequence_of_row = batch.sequence_of_row,
                              .advantages = batch.advantages,
                              .token_advantages = {},
                              .surrogate_mask = batch.high_entropy,
                              .num_sequences = batch.advantages.numel()};
  if (grpo.policy().beta > 0) inputs.reference_logps = batch.reference_logps;
  if (grpo.ratio_to_generator()) inputs.old_logps = batch.generator_logps;
  if (grpo.correction() != losses::SamplingCorrection::kNone)
    inputs.generator_logps = batch.generator_logps;
  return inputs;
}

}  // namespace

GrpoStepLoss::GrpoStepLoss(parallel::World& world, const roles::Trainer& trainer,
                           ReferenceQuestions* reference, Options options)
    : world_(world), trainer_(trainer), reference_(reference), options_(std::move(options)) {}

size_t GrpoStepLoss::num_values() { return GrpoSum::kValues; }

// Marks the tokens whose entropy belongs to the highest of the step's, on all ranks and in all
// micro-batches: one forward pass says them before the first loss.
void GrpoStepLoss::mark_high_entropy(std::span<GrpoMicroBatch> batches, parallel::Group& dp) const {
  std::vector<at::Tensor> entropies;
  parallel::run_on_all(world_.all(), [&] {
    for (const GrpoMicroBatch& batch : batches)
      entropies.push_back(
          student_rows(trainer_, batch, options_.temperature, options_.num_ids).entropy);
  });
  if (world_.pp().rank() + 1 != world_.pp().size()) return;  // the losses are formed elsewhere

  // The quantile is over all ranks' tokens. Ranks have different numbers of them, so they are
  // padded to the longest, with a number that no entropy is.
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
  for (size_t index = 0; index < batches.size(); ++index)
    batches[index].high_entropy = entropies[index].lt(threshold).logical_not();
}

// The entropy is a mean over tokens whatever the loss is divided by (as in TRL 1.9). The step
// divides its whole loss by divisor(), which the weight takes back.
void GrpoStepLoss::begin_step(std::span<GrpoMicroBatch> batches, parallel::Group& dp) {
  if (options_.grpo.picks_tokens()) mark_high_entropy(batches, dp);
  if (options_.grpo.entropy_coef == 0) return;
  StepSums sums;
  sums.values.resize(GrpoSum::kValues, 0.0);
  for (const GrpoMicroBatch& batch : batches)
    count_samples(batch, sums);
  const double picked =
      options_.grpo.picks_tokens() ? sums.values[GrpoSum::kHighEntropy] : sums.count;
  at::Tensor all = at::tensor({sums.count, sums.values[GrpoSum::kSequences], picked}, at::kDouble);
  if (dp.size() > 1) dp.all_reduce(all);
  const double* of_all = all.const_data_ptr<double>();
  sums.count = of_all[0];
  sums.values[GrpoSum::kSequences] = of_all[1];
  entropy_weight_ = options_.grpo.entropy_coef * divisor(sums) / std::max(1.0, of_all[2]);
}

at::Tensor GrpoStepLoss::loss_sum(const models::Head& head, const at::Tensor& hidden,
                                  GrpoMicroBatch& batch, StepSums& sums) {
  const auto logps = losses::linear_log_probs(
      hidden, head.weight, bias_of_drawn_ids(head, options_.num_ids), batch.batch.targets,
      {.temperature = options_.temperature,
       .entropy = true,
       .entropy_gradient = options_.grpo.entropy_coef > 0},
      head.vocab, head.softcap);
  const losses::PolicyOptions policy = options_.grpo.policy();
  // A batch is trained on in every iteration, but the reference answers for it once.
  if (policy.beta > 0 && !batch.reference_logps.defined())
    batch.reference_logps = reference_->token_log_probs(batch.reference, batch.batch.num_targets());

  // From here on the loss works on two numbers a token, in host memory.
  const std::vector<at::Tensor> here = losses::in_host_memory({logps.log_probs, logps.entropy});
  const at::Tensor& log_probs = here[0];
  const losses::PolicyResult result =
      losses::policy_loss(policy_inputs(batch, log_probs, options_.grpo), policy);
  // The student before its first step on these samples is the old policy of the iterations after
  // it.
  if (!batch.old_logps.defined() && options_.grpo.num_iterations > 1)
    batch.old_logps = log_probs.detach();

  count_samples(batch, sums);
  add_sums(kLossSums, result, sums);
  add_sums(kSamplingSums, result, sums);
  sums.values[GrpoSum::kEntropy] += here[1].detach().to(at::kDouble).sum().item<double>();
  sums.values[GrpoSum::kDrawnLogp] += batch.generator_logps.to(at::kDouble).sum().item<double>();

  if (options_.grpo.entropy_coef == 0) return result.loss_sum;
  if (!batch.high_entropy.defined()) return result.loss_sum - entropy_weight_ * logps.entropy.sum();
  const at::Tensor picked = batch.high_entropy.to(logps.entropy.options());
  return result.loss_sum - entropy_weight_ * (logps.entropy * picked).sum();
}

double GrpoStepLoss::divisor(const StepSums& sums) const {
  return losses::policy_divisor(
      options_.grpo.loss_type, {.sequences = static_cast<int64_t>(sums.values[GrpoSum::kSequences]),
                                .tokens = static_cast<int64_t>(sums.count),
                                .max_completion_tokens = options_.max_new_tokens});
}

void GrpoStepLoss::add_metrics(const StepSums& sums, MetricsRow& row) const {
  for (const LossSum& one : kLossSums) {
    if (one.name.empty() || (one.is_told != nullptr && !one.is_told(options_.grpo))) continue;
    const double count = sums.values[one.per];
    // Entropy has no value where no token was trained on.
    const bool is_null = one.sum == GrpoSum::kEntropy && count == 0;
    row.add(std::string(one.name), is_null ? std::numeric_limits<double>::quiet_NaN()
                                           : sums.values[one.sum] / std::max(1.0, count));
  }

  const double ratios = sums.values[GrpoSum::kRatioCount];
  if (ratios == 0) return;
  const double tokens = std::max(1.0, sums.values[GrpoSum::kRows]);
  const double ratio = sums.values[GrpoSum::kRatio];
  const double square = sums.values[GrpoSum::kRatioSquare];
  // The effective sample size is the share (sum of w)^2 / (n * sum of w^2): 1 where all ratios are
  // equal.
  row.add("sampling_ratio/mean", ratio / ratios);
  row.add("sampling_ratio/effective_sample_size",
          square > 0 ? ratio * ratio / (ratios * square) : 0);
  row.add("sampling_logp_difference/mean", sums.values[GrpoSum::kDrawnDifference] / tokens);
  // If the tokens were drawn from the trainer's own distributions, -log p would be their entropy on
  // average, and this would be 0.
  row.add("sampling_surprise/mean",
          -(sums.values[GrpoSum::kDrawnLogp] + sums.values[GrpoSum::kEntropy]) / tokens);
}

}  // namespace retort::recipes
