#include "recipes/reward_model/objective.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "models/decoder/sequence_scores.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/loop/metric_sums.h"

namespace retort::recipes {
namespace {

// Returns the row at which the score of prompt + completion is read, in a sequence that begins at
// `begin` and whose completion begins at `completion_begin`: the sequence may fork there, so the
// two need not be neighbours.
int64_t scored_row(const std::vector<int32_t>& prompt, const std::vector<int32_t>& completion,
                   int64_t begin, int64_t completion_begin, int64_t pad_token_id) {
  std::vector<int32_t> ids = prompt;
  ids.insert(ids.end(), completion.begin(), completion.end());
  const int64_t position = models::score_position(ids, pad_token_id);
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  return position < prompt_tokens ? begin + position : completion_begin + position - prompt_tokens;
}

}  // namespace

ScoredPairs make_scored_pairs(data::PairMicroBatch batch, const RewardModelOptions& options,
                              int64_t pad_token_id, bool share_prompts) {
  ScoredPairs scored;
  scored.tokens = data::student_sequences(batch, share_prompts).tokens;
  const int64_t count = batch.num_pairs();
  scored.tokens.wanted = at::empty({2 * count}, at::kLong);
  scored.objectives = at::empty({count}, at::kLong);
  if (options.use_margin) scored.margins = at::empty({count}, at::kFloat);
  auto* row = scored.tokens.wanted.mutable_data_ptr<int64_t>();
  auto* objective = scored.objectives.mutable_data_ptr<int64_t>();
  const auto begin_of = [&](int64_t sequence) {
    return scored.tokens.cu_seqlens[static_cast<size_t>(sequence)];
  };

  // A pair is one sequence (prompt, chosen, rejected), or one for each completion.
  for (int64_t p = 0; p < count; ++p) {
    const data::PreferenceSample& pair = batch.pairs[static_cast<size_t>(p)];
    const auto prompt = static_cast<int64_t>(pair.prompt_ids.size());
    const int64_t first = begin_of(share_prompts ? p : 2 * p);
    const int64_t second = share_prompts ? first : begin_of(2 * p + 1);
    const int64_t chosen = first + prompt;
    const int64_t rejected =
        share_prompts ? chosen + static_cast<int64_t>(pair.chosen_ids.size()) : second + prompt;
    row[2 * p] = scored_row(pair.prompt_ids, pair.chosen_ids, first, chosen, pad_token_id);
    row[2 * p + 1] = scored_row(pair.prompt_ids, pair.rejected_ids, second, rejected, pad_token_id);

    const PairTarget target = pair_target(pair, options);
    objective[p] = target.objective;
    if (options.use_margin)
      scored.margins.mutable_data_ptr<float>()[p] = static_cast<float>(target.margin);
  }
  scored.batch = std::move(batch);
  return scored;
}

losses::BradleyTerryInputs pair_scores(const models::Head& head, const at::Tensor& rows,
                                       const ScoredPairs& pairs) {
  const at::Tensor scores = models::sequence_scores(head, rows);
  const int64_t count = pairs.batch.num_pairs();
  const at::Tensor objectives = pairs.objectives.to(scores.device()).unsqueeze(1);
  // The model gives a score for each label; a pair is compared by the one that its row names.
  const auto of = [&](int64_t completion) {
    return scores.view({count, 2, scores.size(1)})
        .select(1, completion)
        .gather(1, objectives)
        .squeeze(1);
  };
  return {.chosen = of(0), .rejected = of(1), .margin = pairs.margins};
}

RewardModelObjective::RewardModelObjective(PairSource source, Options options)
    : source_(std::move(source)), options_(std::move(options)) {
  options_.reward_model.validate();
}

StepInfo RewardModelObjective::next_step(int64_t step) {
  data::PairBatchStream::Step batches = source_(step);
  std::vector<ScoredPairs> drawn;
  for (data::PairMicroBatch& batch : batches.micro_batches)
    drawn.push_back(make_scored_pairs(std::move(batch), options_.reward_model,
                                      options_.pad_token_id, options_.share_prompts));
  const size_t count = drawn.size();
  drawn_.push_back(std::move(drawn));
  return {.micro_batches = count,
          .after = batches.after,
          .epoch = batches.epoch,
          .data_wait_time = batches.waited};
}

std::string RewardModelObjective::origins(size_t index) const {
  return list_origins(drawn_.front().at(index).batch.pairs);
}

at::Tensor RewardModelObjective::pair_loss(const models::Head& head, const at::Tensor& rows,
                                           const ScoredPairs& pairs, StepSums& sums) const {
  const losses::BradleyTerryResult result =
      losses::bradley_terry_loss(pair_scores(head, rows, pairs), options_.reward_model.loss());
  sums.count += static_cast<double>(result.count);
  sums.num_tokens += static_cast<double>(pairs.batch.tokens.num_tokens());
  sums.values[kAccuracy] += result.accuracy_sum;
  sums.values[kMargin] += result.margin_sum;
  sums.values[kChosen] += result.chosen_sum;
  sums.values[kRejected] += result.rejected_sum;
  sums.values[kScores] += 2 * static_cast<double>(result.count);
  for (const data::PreferenceSample& pair : pairs.batch.pairs)
    sums.values[kIdentical] += pair.identical ? 1 : 0;
  return result.loss_sum;
}

at::Tensor RewardModelObjective::loss_sum(const models::Head& head, const at::Tensor& hidden,
                                          size_t index, StepSums& sums) {
  const ScoredPairs& pairs = drawn_.front().at(index);
  sums.num_truncated += count_truncated(pairs.batch.pairs);
  return pair_loss(head, hidden, pairs, sums);
}

void RewardModelObjective::add_metrics(const StepSums& sums, const std::string& prefix,
                                       MetricsRow& row) {
  static constexpr std::array<MeanMetric, 4> kMetrics{{{"accuracy", kAccuracy},
                                                       {"margin", kMargin},
                                                       {"rewards/chosen", kChosen},
                                                       {"rewards/rejected", kRejected}}};
  add_means(kMetrics, sums, sums.count, row, prefix);
  row.add(prefix + "mean_reward",
          (sums.values[kChosen] + sums.values[kRejected]) / sums.values[kScores]);
  row.add(prefix + "num_pairs", static_cast<int64_t>(sums.count));
  row.add(prefix + "num_identical_pairs", static_cast<int64_t>(sums.values[kIdentical]));
}

void RewardModelObjective::finish_step(const StepSums& sums, MetricsRow& row) {
  drawn_.pop_front();
  row.add("num_truncated", static_cast<int64_t>(sums.num_truncated));
  add_metrics(sums, "", row);
}

MetricsRow RewardModelObjective::evaluate(int64_t step, const roles::Trainer& student,
                                          const std::vector<data::PairMicroBatch>& batches,
                                          parallel::World& world) const {
  const c10::NoGradGuard no_grad;
  StepSums sums{.values = std::vector<double>(kValues, 0.0)};
  for (const data::PairMicroBatch& batch : batches) {
    if (batch.num_pairs() == 0) continue;
    const ScoredPairs pairs = make_scored_pairs(batch, options_.reward_model, options_.pad_token_id,
                                                options_.share_prompts);
    const at::Tensor rows = student.hidden(pairs.tokens);
    if (rows.defined())
      sums.loss += pair_loss(student.decoder().head(), rows, pairs, sums).item<double>();
  }

  // Only the ranks where the pipeline ends have formed sums; the others add nothing, but get the
  // total.
  all_reduce(sums, world.dp_pp());
  if (sums.count == 0) throw Error(ErrorCode::kInvalidArgument, "the evaluation data has no pair");
  MetricsRow row{.step = step, .values = {}};
  row.add("eval_loss", sums.loss / sums.count);
  add_metrics(sums, "eval_", row);
  return row;
}

}  // namespace retort::recipes
