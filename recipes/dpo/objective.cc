#include "recipes/dpo/objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>

#include "base/error.h"
#include "parallel/group.h"
#include "parallel/vote.h"
#include "recipes/losses/counterparts.h"
#include "recipes/losses/host_rows.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/log_sum_squares.h"
#include "recipes/losses/pair_weights.h"
#include "recipes/losses/sequence_sums.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/loop/metric_sums.h"

namespace retort::recipes {
namespace {

// Finds the counterparts of aot and aot_unpaired: of this rank's P pairs among those of all ranks
// of `group`, whichever rank has which pair: [3, P] (losses/counterparts.h). `sums`: [4, P] float32
// in host memory, the log-probabilities of the policy's chosen and rejected completions and of the
// reference's. P may differ between ranks.
// Collectives: two all-reduces on `group`, 8 bytes a rank and 16 bytes a pair.
at::Tensor counterparts_over(parallel::Group& group, const at::Tensor& sums) {
  // The counts of all ranks say where the pairs of each stand among those of all.
  at::Tensor counts = at::zeros({group.size()}, at::kLong);
  int64_t* count = counts.mutable_data_ptr<int64_t>();
  count[group.rank()] = sums.size(1);
  group.all_reduce(counts);
  const int64_t begin = std::accumulate(count, count + group.rank(), int64_t{0});
  const int64_t total = std::accumulate(count, count + group.size(), int64_t{0});

  // Every number comes from one rank, the others add zeros: the sum is that number, to the bit.
  at::Tensor all = at::zeros({4, total}, at::kFloat);
  all.narrow(1, begin, sums.size(1)).copy_(sums);
  group.all_reduce(all);
  return losses::counterparts(all.select(0, 0), all.select(0, 1), all.select(0, 2),
                              all.select(0, 3))
      .narrow(1, begin, sums.size(1));
}

at::Tensor chosen_of(const at::Tensor& by_sequence) {
  return by_sequence.view({by_sequence.numel() / 2, 2}).select(1, 0);
}
at::Tensor rejected_of(const at::Tensor& by_sequence) {
  return by_sequence.view({by_sequence.numel() / 2, 2}).select(1, 1);
}

double chosen_tokens(const data::PairMicroBatch& batch) {
  double sum = 0;
  for (const data::PairShape& shape : batch.shapes)
    sum += static_cast<double>(shape.chosen_tokens);
  return sum;
}

}  // namespace

DpoObjective::DpoObjective(PairSource source, std::unique_ptr<Reference> reference, Options options)
    : source_(std::move(source)), reference_(std::move(reference)), options_(std::move(options)) {
  options_.loss.validate();
  RETORT_CHECK((reference_ != nullptr) == losses::needs_reference(options_.loss))
      << "a reference that is missing or not used";
  RETORT_CHECK(options_.student != nullptr || !losses::needs_counterparts(options_.loss))
      << "counterparts are found with the student";
}

DpoObjective::~DpoObjective() = default;

// With ld_alpha the sum of a completion that is the longer one depends on the other's length: it is
// kept under ids that hold that length and ld_alpha, negative ones, which no text has.
void DpoObjective::name_completions(Drawn& drawn) const {
  drawn.weighted.reserve(drawn.batch.pairs.size());
  for (const data::PreferenceSample& pair : drawn.batch.pairs) {
    drawn.completions.push_back({pair.prompt_ids, pair.chosen_ids});
    drawn.completions.push_back({pair.rejected_prompt_ids(), pair.rejected_ids});
    const size_t chosen = pair.chosen_ids.size();
    const size_t rejected = pair.rejected_ids.size();
    if (!options_.loss.ld_alpha || chosen == rejected) continue;

    drawn.weighted.push_back(chosen > rejected ? pair.chosen_ids : pair.rejected_ids);
    std::vector<int32_t>& ids = drawn.weighted.back();
    ids.push_back(-1 - static_cast<int32_t>(std::min(chosen, rejected)));
    const auto alpha = std::bit_cast<std::array<int32_t, 2>>(*options_.loss.ld_alpha);
    ids.insert(ids.end(), alpha.begin(), alpha.end());
    CompletionIds& longer =
        drawn.completions[drawn.completions.size() - (chosen > rejected ? 2 : 1)];
    longer.completion = ids;
  }
}

DpoObjective::Drawn DpoObjective::ask(data::PairMicroBatch batch, uint64_t request_id,
                                      int64_t step) {
  Drawn drawn{.batch = std::move(batch),
              .shared = {},
              .pending = {},
              .completions = {},
              .weighted = {},
              .row_weights = {},
              .counterparts = {}};
  // The student computes the prompt of a pair once where it can; the reference gets both sequences.
  drawn.shared = data::student_sequences(drawn.batch, options_.share_prompts);
  drawn.shared.tokens.wanted = drawn.shared.predict_positions;
  if (!reference_) return drawn;

  name_completions(drawn);
  drawn.pending = reference_->ask_unknown(request_id, step, drawn.batch.tokens,
                                          drawn.batch.predict_positions, drawn.completions);
  return drawn;
}

StepInfo DpoObjective::next_step(int64_t step) {
  data::PairBatchStream::Step batches = source_(step);
  const uint64_t count = batches.micro_batches.size();
  DrawnStep drawn;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t id = request_id(step, i, count, options_.dp_rank, options_.dp_size);
    drawn.micro_batches.push_back(ask(std::move(batches.micro_batches[i]), id, step));
  }
  drawn_.push_back(std::move(drawn));
  return {.micro_batches = count,
          .after = batches.after,
          .epoch = batches.epoch,
          .data_wait_time = batches.waited};
}

std::string DpoObjective::origins(size_t index) const {
  return list_origins(drawn_.front().micro_batches.at(index).batch.pairs);
}

void DpoObjective::begin_step(parallel::Group& dp) {
  nll_scale_ = 0;
  if (losses::uses_chosen_nll(options_.loss)) count_chosen_tokens(dp);
  if (!losses::needs_counterparts(options_.loss)) return;
  std::vector<Drawn>& batches = drawn_.front().micro_batches;
  // Counterparts are found among the pairs of the whole step, so a forward pass of all of them
  // comes before the first loss.
  const auto sums_of = [&](size_t i) {
    return sums_without_gradient(*options_.student, batches[i]);
  };
  std::vector<at::Tensor> found = find_counterparts(batches.size(), sums_of, dp);
  for (size_t i = 0; i < batches.size(); ++i)
    batches[i].counterparts = std::move(found[i]);
}

void DpoObjective::count_chosen_tokens(parallel::Group& dp) {
  at::Tensor sums = at::zeros({2}, at::kDouble);
  double* sum = sums.mutable_data_ptr<double>();
  for (const Drawn& drawn : drawn_.front().micro_batches) {
    sum[0] += static_cast<double>(drawn.batch.num_pairs());
    sum[1] += chosen_tokens(drawn.batch);
  }
  if (dp.size() > 1) dp.all_reduce(sums);
  // The step divides its loss by the number of pairs. This factor makes the NLL in it a mean over
  // the tokens of all chosen completions.
  nll_scale_ = sum[0] / sum[1];
}

// [4, P] of a micro-batch, as counterparts_over() takes them; without pairs where the pipeline does
// not end.
at::Tensor DpoObjective::sums_without_gradient(const roles::Trainer& student, Drawn& drawn) {
  const c10::NoGradGuard no_grad;
  const at::Tensor rows = student.hidden(drawn.shared.tokens);
  if (!rows.defined()) return at::zeros({4, 0}, at::kFloat);

  const losses::PreferenceInputs in =
      compare(student.decoder().head(), rows, drawn, &drawn.waited, /*logits=*/nullptr);
  at::Tensor sums =
      at::stack({in.policy_chosen, in.policy_rejected, in.reference_chosen, in.reference_rejected});
  if (!sums.isfinite().all().item<bool>())
    throw Error(ErrorCode::kInvalidArgument,
                "the log-probabilities of completions are not finite on samples " +
                    list_origins(drawn.batch.pairs));
  return sums;
}

// Finds what the pairs of each of these micro-batches are compared with among the pairs of all
// `ranks`: [3, P] each, from their sums [4, P].
std::vector<at::Tensor> DpoObjective::find_counterparts(
    size_t batches, const std::function<at::Tensor(size_t)>& sums_of,
    parallel::Group& ranks) const {
  std::vector<at::Tensor> sums{at::zeros({4, 0}, at::kFloat)};
  // Each data-parallel rank waits for answers of its own. If one fails, the vote keeps the others
  // out of the collectives behind it.
  parallel::run_on_all(ranks, [&] {
    for (size_t i = 0; i < batches; ++i)
      sums.push_back(sums_of(i));
  });

  const at::Tensor all = counterparts_over(ranks, at::cat(sums, 1));
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (size_t i = 0; i < batches; ++i) {
    const int64_t pairs = sums[i + 1].size(1);
    parts.push_back(all.narrow(1, begin, pairs));
    begin += pairs;
  }
  return parts;
}

// Forms the sums of both completions of each pair, by the policy and by the reference. `logits`, if
// it is asked for, becomes the mean logits at each row.
losses::PreferenceInputs DpoObjective::compare(const models::Head& head, const at::Tensor& rows,
                                               Drawn& drawn, double* waited, at::Tensor* logits) {
  const data::PairMicroBatch& batch = drawn.batch;
  const int64_t sequences = 2 * batch.num_pairs();
  // From here on the loss works on a few numbers a token, in host memory.
  const std::vector<at::Tensor> here = losses::in_host_memory(
      {losses::linear_log_probs(rows, head.weight, {}, batch.targets, {}, head.vocab, head.softcap)
           .log_probs,
       logits != nullptr ? mean_logits_.of(head, rows) : at::Tensor(),
       options_.loss.use_weighting
           ? losses::linear_log_sum_squares(rows, head.weight, head.vocab, head.softcap)
           : at::Tensor()});
  if (logits != nullptr) *logits = here[1];

  const std::optional<double> ld_alpha = options_.loss.ld_alpha;
  if (ld_alpha && !drawn.row_weights.defined())
    drawn.row_weights =
        losses::shared_length_weights(batch.sequence_of_row, batch.num_pairs(), *ld_alpha);
  const at::Tensor policy = losses::sum_by_sequence(
      ld_alpha ? here[0] * drawn.row_weights : here[0], batch.sequence_of_row, sequences);
  const at::Tensor tokens = at::bincount(batch.sequence_of_row, {}, sequences).to(at::kFloat);
  losses::PreferenceInputs inputs{.policy_chosen = chosen_of(policy),
                                  .policy_rejected = rejected_of(policy),
                                  .reference_chosen = {},
                                  .reference_rejected = {},
                                  .chosen_tokens = chosen_of(tokens),
                                  .rejected_tokens = rejected_of(tokens),
                                  .counterparts = {}};
  if (options_.loss.use_weighting)
    inputs.pair_weights =
        losses::pair_weights(here[0], here[2], batch.sequence_of_row, batch.num_pairs());
  if (ld_alpha && losses::uses_chosen_nll(options_.loss))
    inputs.policy_chosen_whole =
        chosen_of(losses::sum_by_sequence(here[0], batch.sequence_of_row, sequences));
  if (reference_) {
    const at::Tensor reference = reference_->completion_log_probs(
        drawn.pending, drawn.completions, batch.sequence_of_row, waited, drawn.row_weights);
    inputs.reference_chosen = chosen_of(reference);
    inputs.reference_rejected = rejected_of(reference);
  }
  return inputs;
}

at::Tensor DpoObjective::pair_loss(const models::Head& head, const at::Tensor& rows, Drawn& drawn,
                                   double nll_scale, StepSums& sums) {
  const data::PairMicroBatch& batch = drawn.batch;
  at::Tensor logits;
  losses::PreferenceInputs inputs = compare(head, rows, drawn, &sums.values[kWaitSeconds], &logits);
  inputs.counterparts = drawn.counterparts;
  // The wait of begin_step() is counted here, where the loss is formed, so that the sums of a step
  // hold it once.
  sums.values[kWaitSeconds] += drawn.waited;

  const losses::PreferenceResult result = losses::preference_loss(inputs, options_.loss);
  sums.count += static_cast<double>(result.count);
  sums.num_tokens += static_cast<double>(batch.tokens.num_tokens());
  add_sums(logits, batch, inputs, result, sums);
  return nll_scale == 0 ? result.loss_sum : result.loss_sum + result.chosen_nll_sum * nll_scale;
}

// Adds what the metrics are made of, without autograd. `mean_logits`: at each row.
void DpoObjective::add_sums(const at::Tensor& mean_logits, const data::PairMicroBatch& batch,
                            const losses::PreferenceInputs& inputs,
                            const losses::PreferenceResult& result, StepSums& sums) {
  const c10::NoGradGuard no_grad;
  const int64_t sequences = 2 * batch.num_pairs();

  const at::Tensor logits = losses::sum_by_sequence(mean_logits, batch.sequence_of_row, sequences);
  sums.values[kLogitsChosen] += chosen_of(logits).sum().item<double>();
  sums.values[kLogitsRejected] += rejected_of(logits).sum().item<double>();

  sums.values[kNll] += result.chosen_nll_sum.item<double>();
  sums.values[kChosenTokens] += result.chosen_tokens;
  sums.values[kRejectedTokens] += inputs.rejected_tokens.sum().item<double>();
  sums.values[kRewardsChosen] += result.rewards_chosen_sum;
  sums.values[kRewardsRejected] += result.rewards_rejected_sum;
  sums.values[kMargins] += result.rewards_margins_sum;
  sums.values[kAccuracies] += result.rewards_accuracies_sum;
  sums.values[kLogpsChosen] += result.logps_chosen_sum;
  sums.values[kLogpsRejected] += result.logps_rejected_sum;
  for (const data::PreferenceSample& pair : batch.pairs)
    sums.values[kIdentical] += pair.identical ? 1 : 0;
}

at::Tensor DpoObjective::loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                                  StepSums& sums) {
  Drawn& drawn = drawn_.front().micro_batches.at(index);
  sums.num_truncated += count_truncated(drawn.batch.pairs);
  return pair_loss(head, hidden, drawn, nll_scale_, sums);
}

void DpoObjective::add_metrics(const StepSums& sums, const std::string& prefix,
                               MetricsRow& row) const {
  static constexpr std::array<MeanMetric, 8> kMetrics{
      {{"rewards/chosen", kRewardsChosen},
       {"rewards/rejected", kRewardsRejected},
       {"rewards/margins", kMargins},
       {"rewards/accuracies", kAccuracies},
       {"logps/chosen", kLogpsChosen},
       {"logps/rejected", kLogpsRejected},
       {"logits/chosen", kLogitsChosen, kChosenTokens},
       {"logits/rejected", kLogitsRejected, kRejectedTokens}}};
  add_means(kMetrics, sums, sums.count, row, prefix);
  row.add(prefix + "num_pairs", static_cast<int64_t>(sums.count));
  row.add(prefix + "num_identical_pairs", static_cast<int64_t>(sums.values[kIdentical]));
  if (losses::uses_chosen_nll(options_.loss))
    row.add(prefix + "nll_loss", sums.values[kNll] / sums.values[kChosenTokens]);
}

void DpoObjective::finish_step(const StepSums& sums, MetricsRow& row) {
  drawn_.pop_front();
  mean_logits_.forget();
  row.add("num_truncated", static_cast<int64_t>(sums.num_truncated));
  add_metrics(sums, "", row);
  if (!reference_) return;
  row.add("reference_wait_time", sums.values[kWaitSeconds] / static_cast<double>(options_.dp_size));
}

MetricsRow DpoObjective::evaluate(int64_t step, const roles::Trainer& student,
                                  const std::vector<data::PairMicroBatch>& batches,
                                  parallel::World& world) {
  const c10::NoGradGuard no_grad;
  mean_logits_.forget();
  StepSums sums{.values = std::vector<double>(kValues, 0.0)};
  std::vector<at::Tensor> found;
  if (losses::needs_counterparts(options_.loss)) {
    const auto sums_of = [&](size_t i) {
      if (batches[i].num_pairs() == 0) return at::zeros({4, 0}, at::kFloat);
      Drawn drawn = ask(batches[i], next_evaluation_request_++, step);
      return sums_without_gradient(student, drawn);
    };
    found = find_counterparts(batches.size(), sums_of, world.dp_pp());
  }

  for (size_t i = 0; i < batches.size(); ++i) {
    const data::PairMicroBatch& batch = batches[i];
    if (batch.num_pairs() == 0) continue;
    Drawn drawn = ask(batch, next_evaluation_request_++, step);
    if (!found.empty()) drawn.counterparts = found[i];
    const at::Tensor rows = student.hidden(drawn.shared.tokens);
    if (rows.defined())
      sums.loss += pair_loss(student.decoder().head(), rows, drawn, 0, sums).item<double>();
  }

  mean_logits_.forget();

  // Only the ranks where the pipeline ends have formed sums; the others add nothing, but get the
  // total.
  all_reduce(sums, world.dp_pp());
  if (sums.count == 0) throw Error(ErrorCode::kInvalidArgument, "the evaluation data has no pair");
  // The NLL is a mean over tokens, the rest over pairs: the two are divided apart.
  double loss = sums.loss / sums.count;
  if (losses::uses_chosen_nll(options_.loss))
    loss += sums.values[kNll] / sums.values[kChosenTokens];

  MetricsRow row{.step = step, .values = {}};
  row.add("eval_loss", loss);
  add_metrics(sums, "eval_", row);
  return row;
}

}  // namespace retort::recipes
