#include "recipes/grpo/objective.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "parallel/vote.h"
#include "recipes/grpo/advantages.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rollout/deal.h"
#include "recipes/rollout/drawn_ids.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/run/batch_objective.h"

namespace retort::recipes {
GrpoObjective::GrpoObjective(parallel::World& world, const roles::Trainer& trainer,
                             std::shared_ptr<const data::PromptDataset> prompts,
                             std::unique_ptr<data::IndexStream> stream,
                             std::shared_ptr<SampleSource> samples,
                             std::shared_ptr<RolloutScorer> scorer,
                             std::unique_ptr<Reference> reference, Options options)
    : world_(world),
      trainer_(trainer),
      prompts_(std::move(prompts)),
      stream_(std::move(stream)),
      samples_(std::move(samples)),
      scorer_(std::move(scorer)),
      options_(std::move(options)),
      drawn_to_(options_.start_cursor),
      next_round_(options_.start_step / options_.grpo.num_iterations) {
  RETORT_CHECK((options_.grpo.beta > 0) == (reference != nullptr))
      << "a reference that is missing or not used";
  if (reference)
    reference_ = std::make_unique<ReferenceQuestions>(
        std::move(reference),
        ReferenceQuestions::Options{.num_generations = options_.num_generations,
                                    .micro_batches = options_.micro_batches,
                                    .rows_per_micro_batch = options_.rows_per_micro_batch,
                                    .dp_rank = world_.dp().rank(),
                                    .dp_size = world_.dp().size()});
}
GrpoObjective::~GrpoObjective() = default;

std::vector<PendingRollout*> GrpoObjective::in_flight() {
  std::vector<PendingRollout*> waiting;
  for (Round& round : requested_)
    waiting.push_back(&round.pending);
  return waiting;
}

bool GrpoObjective::saves_after(int64_t done) const {
  const auto due = [&](int64_t every) { return every > 0 && done % every == 0; };
  return due(options_.save_steps) || due(options_.exit_interval);
}

// The last round that may be asked for while `round` is trained on: it runs at most as far ahead as
// its weights may be stale in its last step, and none begins at or after a step that saves a
// checkpoint.
int64_t GrpoObjective::last_round_ahead(int64_t round, int64_t done) const {
  const int64_t iterations = options_.grpo.num_iterations;
  const int64_t left = options_.grpo.staleness_left(options_.sync_every_steps);
  const int64_t ahead = std::max<int64_t>(0, left) / iterations;
  int64_t end = options_.max_steps;
  for (const int64_t every : {options_.save_steps, options_.exit_interval})
    if (every > 0) end = std::min(end, (done / every + 1) * every);

  int64_t last = round;
  while (last < round + ahead && (last + 1) * iterations < end)
    ++last;
  return last;
}

// After a checkpoint always, because a run that is resumed there has pushed nothing yet.
bool GrpoObjective::push_is_due(int64_t done) const {
  const auto pushed = static_cast<int64_t>(samples_->pushed_version());
  return saves_after(done) || pushed == 0 || done + 1 - pushed >= options_.sync_every_steps;
}

bool GrpoObjective::pushes_after(int64_t done) const {
  if (done == options_.max_steps) return true;
  const int64_t round = done / options_.grpo.num_iterations;
  const bool begins = done % options_.grpo.num_iterations == 0;
  return begins && next_round_ <= last_round_ahead(round, done) && push_is_due(done);
}

// Requests the rollout of `round` and of the rounds that may run ahead of it, with the student's
// weights of now.
void GrpoObjective::request_rounds(int64_t round, int64_t step) {
  const int64_t done = step - 1;
  const int64_t last = last_round_ahead(round, done);
  if (next_round_ > last) return;

  if (push_is_due(done))
    samples_->sync(trainer_.decoder(), static_cast<uint64_t>(done) + 1, in_flight());
  for (; next_round_ <= last; ++next_round_) {
    Round fresh{.number = next_round_,
                .rows = stream_->next(options_.prompts_per_round),
                .before = drawn_to_,
                .pending = {}};
    DealtPrompts dealt;
    deal(*prompts_, fresh.rows, /*first_place=*/0, options_.num_generations, world_.dp(), dealt);
    fresh.pending = scorer_->begin(*samples_, {.step = step,
                                               .number = static_cast<uint64_t>(next_round_),
                                               .prompts = std::move(dealt.prompts),
                                               .num_generations = options_.num_generations,
                                               .sample_ids = std::move(dealt.sample_ids)});
    drawn_to_ = fresh.rows.after;
    requested_.push_back(std::move(fresh));
  }
}

StepInfo GrpoObjective::next_step(int64_t step) {
  const int64_t iterations = options_.grpo.num_iterations;
  const int64_t round = (step - 1) / iterations;
  const bool first = batches_.empty() || (step - 1) % iterations == 0;
  if (first) {
    request_rounds(round, step);
    RETORT_CHECK(!requested_.empty() && requested_.front().number == round)
        << "round " << round << " was not requested";
    Round current = std::move(requested_.front());
    requested_.pop_front();
    info_ = {.micro_batches = static_cast<size_t>(options_.micro_batches),
             .after = current.rows.after,
             .epoch = current.rows.epoch};
    before_ = current.before;
    prepare(std::move(current), step);
  }
  StepInfo info = info_;
  // A run that is resumed in the middle of a round draws that round again.
  if (step % iterations != 0) info.after = before_;
  return info;
}

// Every rank's rewards in the global order of prompts: row i of the step was on rank i mod dp. [G *
// num_generations], NaN: unscorable.
at::Tensor GrpoObjective::gather_rewards(const Rollout& rollout, int64_t num_groups) const {
  const int64_t ranks = world_.dp().size();
  const int64_t generations = options_.num_generations;
  const int64_t most = (num_groups + ranks - 1) / ranks;
  at::Tensor mine =
      at::full({most, generations}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  double* value = mine.mutable_data_ptr<double>();
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples) {
      if (sample.reward) *value = *sample.reward;
      ++value;
    }
  const at::Tensor all = ranks == 1 ? mine.unsqueeze(0) : world_.dp().all_gather(mine);
  return all.permute({1, 0, 2})
      .reshape({most * ranks, generations})
      .narrow(0, 0, num_groups)
      .reshape({-1});
}

void GrpoObjective::prepare(Round round, int64_t step) {
  const auto num_groups = static_cast<int64_t>(round.rows.rows.size());

  // Where the rank that scores asks the reference, it asks while it waits.
  if (reference_) reference_->begin_round(step);
  if (reference_ && world_.leads_replica() && world_.pp().size() == 1)
    round.pending.meanwhile = [this, request = round.pending.request] {
      reference_->ask_early(request, *scorer_);
    };
  const Rollout rollout = parallel::run_on_all(world_.all(), [&] {
    Rollout drawn = scorer_->finish(*samples_, std::move(round.pending), world_.mp());
    save_samples(options_.samples_folder, world_, drawn, step, scorer_->names());
    return drawn;
  });
  const int64_t generations = options_.num_generations;
  const int64_t ranks = world_.dp().size();

  // Advantages over the whole rollout; this rank trains on its own prompts.
  const losses::Advantages advantages =
      grpo_advantages(gather_rewards(rollout, num_groups), generations, options_.grpo);
  const at::Tensor by_group = advantages.advantages.view({num_groups, generations});
  std::vector<at::Tensor> mine;
  for (int64_t i = world_.dp().rank(); i < num_groups; i += ranks)
    mine.push_back(by_group.select(0, i));
  parallel::run_on_all(world_.all(), [&] {
    batches_ = make_batches(rollout, mine.empty() ? at::empty({0}) : at::cat(mine));
  });
  measure(rollout, advantages, step);
}

std::vector<GrpoMicroBatch> GrpoObjective::make_batches(const Rollout& rollout,
                                                        const at::Tensor& advantages) {
  std::vector<GrpoMicroBatch> batches;
  OpenGrpoMicroBatch open;
  const auto close = [&] {
    batches.push_back(std::exchange(open, {}).close());
    if (reference_)
      batches.back().reference = reference_->ask(batches.size() - 1, batches.back().batch);
  };

  // An unscorable sample keeps its place, so that no other moves to another micro-batch, but takes
  // part in nothing. So does a group without a signal, but for the divisor.
  // What a correction measures, whether generator and trainer agree, is measured on all samples.
  const bool all_count =
      options_.grpo.beta > 0 || options_.grpo.correction() != losses::SamplingCorrection::kNone;
  const float* advantage = advantages.const_data_ptr<float>();
  int64_t placed = 0;
  for (const RolloutGroup& group : rollout.groups) {
    const bool signal = all_count || std::any_of(advantage, advantage + group.samples.size(),
                                                 [](float value) { return value != 0; });
    for (const RolloutSample& sample : group.samples) {
      if (placed++ == options_.rows_per_micro_batch) {
        close();
        placed = 1;
      }
      const float value = *advantage++;
      if (!sample.reward) continue;
      if (signal)
        open.add(group.prompt, sample, value);
      else
        open.leave_out(group.prompt, sample);
    }
  }
  close();

  // Every rank has the same number of micro-batches.
  while (static_cast<int64_t>(batches.size()) < options_.micro_batches)
    close();
  RETORT_CHECK(static_cast<int64_t>(batches.size()) == options_.micro_batches)
      << "more completions than micro-batches hold";
  return batches;
}

void GrpoObjective::measure(const Rollout& rollout, const losses::Advantages& advantages,
                            int64_t step) {
  const size_t rewards = scorer_->names().size();
  // completions, tokens, clipped; then sum and count of each reward
  std::vector<double> sums(3 + 2 * rewards, 0.0);
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples) {
      sums[0] += 1;
      sums[1] += static_cast<double>(sample.completion.token_ids.size());
      sums[2] += sample.completion.finish_reason == models::FinishReason::kLength ? 1 : 0;
      for (size_t r = 0; r < rewards; ++r)
        if (sample.components[r]) {
          sums[3 + 2 * r] += *sample.components[r];
          sums[4 + 2 * r] += 1;
        }
    }

  at::Tensor all = at::tensor(sums, at::kDouble);
  if (world_.dp().size() > 1) world_.dp().all_reduce(all);
  const double* sum = all.const_data_ptr<double>();

  round_metrics_ = MetricsRow{.step = step, .values = {}};
  const bool scored = advantages.num_unscorable < static_cast<int64_t>(sum[0]);  // else null, not 0
  round_metrics_
      .add("reward", scored ? advantages.reward_mean : std::numeric_limits<double>::quiet_NaN())
      .add("reward_std", advantages.reward_std)
      .add("frac_reward_zero_std", advantages.frac_reward_zero_std)
      .add("num_unscorable", advantages.num_unscorable)
      .add("completions/mean_length", sum[1] / sum[0])
      .add("completions/clipped_ratio", sum[2] / sum[0]);
  for (size_t r = 0; r < rewards; ++r) {
    const std::string name = "rewards/" + scorer_->names()[r];
    const double scores = sum[4 + 2 * r];  // of none there is no mean
    round_metrics_
        .add(name, scores > 0 ? sum[3 + 2 * r] / scores : std::numeric_limits<double>::quiet_NaN())
        .add(name + "/num_missing", static_cast<int64_t>(sum[0] - scores));
  }

  weight_version_ = rollout.weight_version;
  round_metrics_.add("generation_time", rollout.generation_seconds)
      .add("generator_wait_time", rollout.wait_seconds)
      .add("reward_time", rollout.reward_seconds)
      .add("reward_wait_time", rollout.reward_wait_seconds)
      .add("weight_sync_time", samples_->last_push_seconds());
}

std::string GrpoObjective::origins(size_t index) const {
  return list_origins(batches_.at(index).batch.samples);
}

at::Tensor GrpoObjective::loss_sum(const models::Head& head, const at::Tensor& hidden, size_t index,
                                   StepSums& sums) {
  GrpoMicroBatch& batch = batches_.at(index);
  const auto logps =
      losses::linear_log_probs(models::rows_at(hidden, batch.batch.predict_positions), head.weight,
                               bias_of_drawn_ids(head, options_.num_ids), batch.batch.targets,
                               {.temperature = options_.temperature, .entropy = true}, head.vocab);
  if (reference_ && !batch.reference_logps.defined())
    batch.reference_logps = reference_->token_log_probs(batch.reference, batch.batch.num_targets());

  // one number a token: from here on in host memory
  const at::Tensor log_probs = logps.log_probs.cpu();
  losses::PolicyInputs inputs{.policy_logps = log_probs,
                              .old_logps = batch.old_logps,
                              .reference_logps = {},
                              .generator_logps = {},
                              .sequence_of_row = batch.sequence_of_row,
                              .advantages = batch.advantages,
                              .token_advantages = {},
                              .num_sequences = batch.advantages.numel()};
  if (options_.grpo.beta > 0) inputs.reference_logps = batch.reference_logps;

  // Samples of older weights: the ratio is to the policy that drew them, as its generator reported
  // it.
  const bool corrected = options_.grpo.correction() != losses::SamplingCorrection::kNone;
  if (!corrected && options_.grpo.max_staleness > 0) inputs.old_logps = batch.generator_logps;
  if (corrected) inputs.generator_logps = batch.generator_logps;

  const losses::PolicyResult result = losses::policy_loss(inputs, options_.grpo.policy());
  if (!batch.old_logps.defined() && options_.grpo.num_iterations > 1)
    batch.old_logps = log_probs.detach();

  const SamplesWithoutSignal& left_out = batch.left_out;
  sums.count += static_cast<double>(result.num_tokens + left_out.rows);
  sums.num_tokens += static_cast<double>(batch.batch.tokens.num_tokens() + left_out.tokens);
  sums.values[kSequences] += static_cast<double>(result.num_sequences + left_out.samples);
  sums.values[kRows] += static_cast<double>(result.num_tokens);
  sums.values[kWithoutSignal] += static_cast<double>(left_out.samples);
  sums.values[kKl] += result.kl_sum;
  sums.values[kClipLow] += result.clip_low_sum;
  sums.values[kClipHigh] += result.clip_high_sum;
  sums.values[kClipRegion] += result.clip_region_sum;
  sums.values[kClipCount] += static_cast<double>(result.clip_count);
  sums.values[kEntropy] += logps.entropy.to(at::kDouble).sum().item<double>();
  sums.values[kRatio] += result.sampling_ratio_sum;
  sums.values[kRatioSquare] += result.sampling_ratio_square_sum;
  sums.values[kDrawnDifference] += result.sampling_logp_difference_sum;
  sums.values[kRatioCount] += static_cast<double>(result.sampling_ratio_count);
  sums.values[kDrawnLogp] += batch.generator_logps.to(at::kDouble).sum().item<double>();
  return result.loss_sum;
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
  // Of none there is no mean.
  row.add("entropy", sums.values[kRows] > 0 ? sums.values[kEntropy] / tokens
                                            : std::numeric_limits<double>::quiet_NaN());
  if (options_.grpo.beta > 0) row.add("kl", sums.values[kKl] / tokens);
  row.add("clip_ratio/low_mean", sums.values[kClipLow] / ratios);
  row.add("clip_ratio/high_mean", sums.values[kClipHigh] / ratios);
  row.add("clip_ratio/region_mean", sums.values[kClipRegion] / ratios);
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
