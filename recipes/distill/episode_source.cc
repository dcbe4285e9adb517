#include "recipes/distill/episode_source.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "base/sizes.h"
#include "models/generation/completion_spans.h"
#include "parallel/vote.h"
#include "recipes/rollout/episode_metrics.h"
#include "recipes/rollout/lost_round.h"
#include "recipes/rollout/prompt_sharding.h"
#include "recipes/rollout/sample_files.h"

namespace retort::recipes {
namespace {

// Counts episodes; of those that were not lost their tokens, rewards, and which of them were cut.
struct EpisodeSums {
  double episodes = 0, whole = 0, tokens = 0, cut = 0, rewarded = 0, reward = 0;

  void add(const RolloutSample& sample) {
    episodes += 1;
    if (is_lost(sample)) return;
    whole += 1;
    tokens += static_cast<double>(models::num_model_tokens(sample.completion));
    cut += sample.completion.finish_reason == models::FinishReason::kLength ? 1 : 0;
    rewarded += sample.reward ? 1 : 0;
    reward += sample.reward.value_or(0);
  }
  // One all-reduce.
  void reduce(parallel::Group& dp) {
    at::Tensor all = at::tensor({episodes, whole, tokens, cut, rewarded, reward}, at::kDouble);
    dp.all_reduce(all);
    const double* sum = all.const_data_ptr<double>();
    for (double* one : {&episodes, &whole, &tokens, &cut, &rewarded, &reward})
      *one = *sum++;
  }
};

}  // namespace

void take_own_rewards(Rollout& rollout) {
  read_episodes(rollout);
  for (RolloutGroup& group : rollout.groups)
    for (RolloutSample& sample : group.samples)
      if (is_episode(sample) && !is_lost(sample)) sample.reward = sample.episode->outcome.reward;
}

std::vector<data::MicroBatch> episode_batches(const Rollout& rollout, int64_t rows_per_micro_batch,
                                              int64_t count) {
  std::vector<std::vector<data::Sample>> rows(to_size(count));
  int64_t place = 0;
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples) {
      std::vector<data::Sample>& batch = rows.at(to_size(place++ / rows_per_micro_batch));
      if (is_lost(sample) || models::num_model_tokens(sample.completion) == 0) continue;
      batch.push_back(training_row(group.prompt, sample));
    }

  std::vector<data::MicroBatch> batches;
  for (std::vector<data::Sample>& samples : rows)
    batches.push_back(data::make_micro_batch(std::move(samples)));
  return batches;
}

EpisodeSource::EpisodeSource(parallel::World& world, const roles::Trainer& trainer,
                             std::shared_ptr<const data::PromptDataset> prompts,
                             std::unique_ptr<data::IndexStream> order,
                             std::shared_ptr<SampleSource> samples, Options options)
    : world_(world),
      trainer_(trainer),
      prompts_(std::move(prompts)),
      order_(std::move(order)),
      samples_(std::move(samples)),
      options_(std::move(options)) {}

// Draws the episodes of this rank's share of a step's prompts, with the weights of now.
Rollout EpisodeSource::draw(const data::IndexStream::Step& rows, int64_t step) {
  DealtPrompts dealt;
  deal(*prompts_, rows, /*first_place=*/0, /*num_generations=*/1, world_.dp(), dealt);
  samples_->sync(trainer_.decoder(), static_cast<uint64_t>(step), {});
  PendingRollout pending = samples_->begin({.step = step,
                                            .number = static_cast<uint64_t>(step),
                                            .prompts = std::move(dealt.prompts),
                                            .num_generations = 1,
                                            .sample_ids = std::move(dealt.sample_ids)});
  Rollout rollout = samples_->finish(std::move(pending));
  take_own_rewards(rollout);
  save_samples(sample_files_, options_.samples_folder, world_, rollout, step, /*reward_names=*/{});
  return rollout;
}

data::BatchStream::Step EpisodeSource::operator()(int64_t step) {
  const int64_t per_rank = options_.rows_per_micro_batch * options_.micro_batches;
  const data::IndexStream::Step rows =
      next_prompts(*order_, per_rank * world_.dp().size(), /*least=*/1);
  // A rank that fails here would be missing in the sums below.
  const Rollout rollout = parallel::run_on_all(world_.all(), [&] { return draw(rows, step); });
  metrics_ = metrics_of(rollout, step);

  data::BatchStream::Step drawn;
  drawn.micro_batches =
      episode_batches(rollout, options_.rows_per_micro_batch, options_.micro_batches);
  drawn.after = rows.after;
  drawn.epoch = rows.epoch;
  return drawn;
}

MetricsRow EpisodeSource::metrics_of(const Rollout& rollout, int64_t step) {
  EpisodeSums sums;
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples)
      sums.add(sample);
  sums.reduce(world_.dp());
  // All ranks have the same sums, so all of them throw this.
  if (sums.tokens == 0)
    refuse_lost_round(rollout, static_cast<int64_t>(sums.episodes),
                      "has a token of the student to learn from");

  MetricsRow row{.step = step, .values = {}};
  row.add("completions/mean_length", sums.tokens / sums.whole)
      .add("completions/clipped_ratio", sums.cut / sums.whole);
  if (sums.rewarded > 0) row.add("reward", sums.reward / sums.rewarded);
  add_episode_metrics(rollout, world_.dp(), row);
  return row.add("generation_time", rollout.generation_seconds)
      .add("generator_wait_time", rollout.wait_seconds)
      .add("weight_sync_time", samples_->last_push_seconds());
}

void EpisodeSource::add_metrics(MetricsRow& row) const {
  row.values.insert(row.values.end(), metrics_.values.begin(), metrics_.values.end());
}

}  // namespace retort::recipes
