#include "recipes/kto/objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/vote.h"
#include "recipes/losses/host_rows.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/sequence_sums.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/loop/metric_sums.h"

namespace retort::recipes {
namespace {

// Returns the completions as the reference and its cache know them.
std::vector<CompletionIds> ids_of(const data::CompletionBatch& batch) {
  std::vector<CompletionIds> ids;
  for (const data::PromptedCompletion& one : batch.completions)
    ids.push_back({one.prompt_ids, one.completion_ids});
  return ids;
}

// Returns log pi of each completion's tokens, from the hidden states before them.
at::Tensor token_log_probs(const models::Head& head, const at::Tensor& rows,
                           const data::CompletionBatch& batch) {
  return losses::linear_log_probs(rows, head.weight, {}, batch.targets, {}, head.vocab,
                                  head.softcap)
      .log_probs;
}

// Sums the numbers of tokens by completion: [B].
at::Tensor by_completion(const at::Tensor& tokens, const data::CompletionBatch& batch) {
  return losses::sum_by_sequence(tokens, batch.sequence_of_row, batch.num_completions());
}

std::vector<bool> labels_of(const data::UnpairedMicroBatch& batch) {
  std::vector<bool> labels;
  for (const data::UnpairedSample& sample : batch.samples)
    labels.push_back(sample.desirable);
  return labels;
}

}  // namespace

KtoObjective::KtoObjective(RowSource source, const roles::Trainer& student,
                           std::unique_ptr<Reference> reference, Options options)
    : source_(std::move(source)),
      student_(student),
      reference_(std::move(reference)),
      options_(std::move(options)) {
  options_.loss.validate();
  RETORT_CHECK(reference_ != nullptr) << "kto compares with a reference";
}

KtoObjective::~KtoObjective() = default;

Reference::Pending KtoObjective::ask(const data::CompletionBatch& batch, uint64_t request_id,
                                     int64_t step) {
  return reference_->ask_unknown(request_id, step, batch.tokens, batch.predict_positions,
                                 ids_of(batch));
}

StepInfo KtoObjective::next_step(int64_t step) {
  data::UnpairedBatchStream::Step batches = source_(step);
  const uint64_t count = batches.micro_batches.size();
  // There are two requests for each micro-batch, because mismatched completions are new in every
  // epoch, and must not make the reference compute again what the cache knows of the others.
  const auto id = [&](uint64_t number) {
    return request_id(step, number, 2 * count, options_.dp_rank, options_.dp_size);
  };

  DrawnStep step_batches;
  for (uint64_t i = 0; i < count; ++i) {
    Drawn drawn{.batch = std::move(batches.micro_batches[i]), .own = {}, .mismatched = {}};
    data::CompletionBatch& own = drawn.batch.own;
    own.tokens.wanted = own.predict_positions;  // all that the loss reads
    if (losses::needs_kl(options_.loss))
      drawn.mismatched = ask(drawn.batch.mismatched, id(2 * i), step);
    drawn.own = ask(drawn.batch.own, id(2 * i + 1), step);
    step_batches.push_back(std::move(drawn));
  }
  drawn_.push_back(std::move(step_batches));
  return {.micro_batches = count,
          .after = batches.after,
          .epoch = batches.epoch,
          .data_wait_time = batches.waited};
}

std::string KtoObjective::origins(size_t index) const {
  return list_origins(drawn_.front().at(index).batch.samples);
}

// Returns log p of the tokens of a micro-batch's mismatched completions, where the student
// computes; undefined if there are none, or on stages before the pipeline's end.
at::Tensor KtoObjective::mismatched_log_probs(const data::CompletionBatch& batch) const {
  const c10::NoGradGuard no_grad;
  if (batch.num_completions() == 0) return {};
  const at::Tensor rows = student_.hidden(models::wanting(batch.tokens, batch.predict_positions));
  if (!rows.defined()) return {};
  return token_log_probs(student_.decoder().head(), rows, batch);
}

// Sums the log-ratios of a micro-batch's mismatched completions, from their tokens'
// log-probabilities in host memory. The sum stays 0 without these.
void KtoObjective::compare_mismatched(Drawn& drawn, const at::Tensor& log_probs) {
  const c10::NoGradGuard no_grad;
  const data::CompletionBatch& batch = drawn.batch.mismatched;
  if (!log_probs.defined()) return;
  const at::Tensor policy = by_completion(log_probs, batch);
  const at::Tensor reference = reference_->completion_log_probs(
      drawn.mismatched, ids_of(batch), batch.sequence_of_row, &drawn.waited);
  drawn.mismatched_log_ratios =
      (policy.to(at::kDouble) - reference.to(at::kDouble)).sum().item<double>();
  if (!std::isfinite(drawn.mismatched_log_ratios))
    throw Error(ErrorCode::kInvalidArgument,
                "the log-probabilities of mismatched completions are not finite on samples " +
                    list_origins(drawn.batch.samples));
}

void KtoObjective::begin_step(parallel::Group& dp) {
  kl_ = 0;
  if (!losses::needs_kl(options_.loss)) return;
  at::Tensor sums = at::zeros({2}, at::kDouble);
  double* sum = sums.mutable_data_ptr<double>();
  // z is one number for the whole step, so it comes before the first loss. Each data-parallel rank
  // waits for answers of its own: the vote keeps the others out of the all-reduce if one fails.
  parallel::run_on_all(dp, [&] {
    // The student computes all batches before the first answer is waited for, and a device is
    // waited for once.
    std::vector<at::Tensor> log_probs;
    for (const Drawn& drawn : drawn_.front())
      log_probs.push_back(mismatched_log_probs(drawn.batch.mismatched));
    log_probs = losses::in_host_memory(std::move(log_probs));

    auto next = log_probs.begin();
    for (Drawn& drawn : drawn_.front()) {
      compare_mismatched(drawn, *next++);
      sum[0] += drawn.mismatched_log_ratios;
      sum[1] += static_cast<double>(drawn.batch.num_rows());
    }
  });

  if (dp.size() > 1) dp.all_reduce(sums);
  kl_ = losses::kl_estimate(sum[0], sum[1]);
}

// Counts a micro-batch's logits at the positions before completion tokens, by their mean over the
// vocabulary at each.
void KtoObjective::add_logits(const at::Tensor& mean_logits, const data::UnpairedMicroBatch& batch,
                              StepSums& sums) const {
  const at::Tensor logits = by_completion(mean_logits, batch.own).contiguous();
  const float* logit = logits.const_data_ptr<float>();
  for (size_t i = 0; i < batch.samples.size(); ++i) {
    const bool chosen = batch.samples[i].desirable;
    sums.values[chosen ? kLogitsChosen : kLogitsRejected] += logit[i];
    sums.values[chosen ? kTokensChosen : kTokensRejected] +=
        static_cast<double>(batch.own.completions[i].completion_ids.size());
  }
}

at::Tensor KtoObjective::batch_loss(const models::Head& head, const at::Tensor& rows, Drawn& drawn,
                                    double kl, StepSums& sums) {
  const data::CompletionBatch& own = drawn.batch.own;
  const std::vector<at::Tensor> here =
      losses::in_host_memory({token_log_probs(head, rows, own), mean_logits_.of(head, rows)});
  const at::Tensor policy = by_completion(here[0], own);
  const at::Tensor reference = reference_->completion_log_probs(
      drawn.own, ids_of(own), own.sequence_of_row, &sums.values[kWaitSeconds]);
  const losses::KtoResult result = losses::kto_loss(
      {.policy = policy, .reference = reference, .desirable = labels_of(drawn.batch), .kl = kl},
      options_.loss);

  sums.count += static_cast<double>(result.count);
  sums.num_tokens += static_cast<double>(own.tokens.num_tokens());
  sums.values[kChosen] += static_cast<double>(result.chosen.count);
  sums.values[kRejected] += static_cast<double>(result.rejected.count);
  sums.values[kRewardsChosen] += result.chosen.rewards_sum;
  sums.values[kRewardsRejected] += result.rejected.rewards_sum;
  sums.values[kLogpsChosen] += result.chosen.logps_sum;
  sums.values[kLogpsRejected] += result.rejected.logps_sum;
  add_logits(here[1], drawn.batch, sums);
  return result.loss_sum;
}

at::Tensor KtoObjective::loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                                  StepSums& sums) {
  Drawn& drawn = drawn_.front().at(index);
  // These are counted here, where the loss is formed, so that the sums of a step hold them once.
  sums.values[kMismatched] += static_cast<double>(drawn.batch.num_rows());
  sums.values[kMismatchedLogRatios] += drawn.mismatched_log_ratios;
  sums.values[kWaitSeconds] += drawn.waited;
  sums.num_truncated += count_truncated(drawn.batch.samples);
  return batch_loss(head, hidden, drawn, kl_, sums);
}

// A step without rows of a label has no metrics of it.
void KtoObjective::add_metrics(const StepSums& sums, const std::string& prefix,
                               MetricsRow& row) const {
  static constexpr std::array<MeanMetric, 6> kMetrics{
      {{"rewards/chosen", kRewardsChosen, kChosen},
       {"rewards/rejected", kRewardsRejected, kRejected},
       {"logps/chosen", kLogpsChosen, kChosen},
       {"logps/rejected", kLogpsRejected, kRejected},
       {"logits/chosen", kLogitsChosen, kTokensChosen},
       {"logits/rejected", kLogitsRejected, kTokensRejected}}};
  const std::span<const MeanMetric> metrics(kMetrics);

  // The margin stands after the rewards that it is the difference of.
  add_means(metrics.first(2), sums, sums.count, row, prefix);
  if (sums.values[kChosen] > 0 && sums.values[kRejected] > 0)
    row.add(prefix + "rewards/margins", sums.values[kRewardsChosen] / sums.values[kChosen] -
                                            sums.values[kRewardsRejected] / sums.values[kRejected]);
  add_means(metrics.subspan(2), sums, sums.count, row, prefix);

  if (losses::needs_kl(options_.loss))
    row.add(prefix + "kl",
            losses::kl_estimate(sums.values[kMismatchedLogRatios], sums.values[kMismatched]));
  row.add(prefix + "num_desirable", static_cast<int64_t>(sums.values[kChosen]));
  row.add(prefix + "num_undesirable", static_cast<int64_t>(sums.values[kRejected]));
}

void KtoObjective::finish_step(const StepSums& sums, MetricsRow& row) {
  drawn_.pop_front();
  mean_logits_.forget();
  row.add("num_truncated", static_cast<int64_t>(sums.num_truncated));
  add_metrics(sums, "", row);
  row.add("reference_wait_time", sums.values[kWaitSeconds] / static_cast<double>(options_.dp_size));
}

// Returns z over all batches of all ranks, on every rank; adds what it is made of to `sums`.
double KtoObjective::evaluate_kl(int64_t step, const std::vector<data::UnpairedMicroBatch>& batches,
                                 parallel::World& world, StepSums& sums) {
  if (!losses::needs_kl(options_.loss)) return 0;
  at::Tensor packed = at::zeros({2}, at::kDouble);
  double* sum = packed.mutable_data_ptr<double>();
  for (const data::UnpairedMicroBatch& batch : batches) {
    Drawn drawn{.batch = batch, .own = {}, .mismatched = {}};
    drawn.mismatched = ask(drawn.batch.mismatched, next_evaluation_request_++, step);
    compare_mismatched(
        drawn, losses::in_host_memory({mismatched_log_probs(drawn.batch.mismatched)}).front());
    sum[0] += drawn.mismatched_log_ratios;
    if (world.forms_loss()) sum[1] += static_cast<double>(batch.num_rows());
  }
  sums.values[kMismatchedLogRatios] = sum[0];
  sums.values[kMismatched] = sum[1];

  world.dp_pp().all_reduce(packed);
  return losses::kl_estimate(sum[0], sum[1]);
}

MetricsRow KtoObjective::evaluate(int64_t step,
                                  const std::vector<data::UnpairedMicroBatch>& batches,
                                  parallel::World& world) {
  const c10::NoGradGuard no_grad;
  mean_logits_.forget();
  StepSums sums{.values = std::vector<double>(kValues, 0.0)};
  // As in a step, z is one number, which must be known before the first loss.
  const double kl = evaluate_kl(step, batches, world, sums);
  for (const data::UnpairedMicroBatch& batch : batches) {
    if (batch.num_rows() == 0) continue;
    Drawn drawn{.batch = batch, .own = {}, .mismatched = {}};
    drawn.own = ask(drawn.batch.own, next_evaluation_request_++, step);
    const at::Tensor rows =
        student_.hidden(models::wanting(batch.own.tokens, batch.own.predict_positions));
    if (rows.defined())
      sums.loss += batch_loss(student_.decoder().head(), rows, drawn, kl, sums).item<double>();
  }

  mean_logits_.forget();

  // Only the ranks where the pipeline ends have formed sums; the others add nothing, but get the
  // total.
  all_reduce(sums, world.dp_pp());
  if (sums.count == 0) throw Error(ErrorCode::kInvalidArgument, "the evaluation data has no row");
  MetricsRow row{.step = step, .values = {}};
  row.add("eval_loss", sums.loss / sums.count);
  add_metrics(sums, "eval_", row);
  return row;
}

}  // namespace retort::recipes
