#include "recipes/distill/episode_run.h"

#include <utility>
#include <vector>

#include "base/sizes.h"
#include "parallel/vote.h"
#include "recipes/rollout/held_out.h"
#include "recipes/rollout/prompts.h"
#include "recipes/rollout/rollout_worker_setup.h"
#include "recipes/rollout/sample_files.h"

namespace retort::recipes {
namespace {

int64_t divide_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

std::shared_ptr<data::PromptDataset> open_rows(const RunContext& context,
                                               const std::vector<data::Source>& sources) {
  if (sources.empty()) return nullptr;
  return open_prompts(context.recipe(), sources, context.tokenizer, context.chat, context.cache());
}

}  // namespace

EpisodeRun::EpisodeRun(RunContext& context)
    : context_(context),
      train_(open_rows(context, context.recipe().data.train)),
      eval_(open_rows(context, context.recipe().data.eval)) {}

std::unique_ptr<data::IndexStream> EpisodeRun::order_from(const data::Cursor& cursor) const {
  const data::BatchOptions options = context_.batches();
  return std::make_unique<data::IndexStream>(
      train_, data::IndexOptions{.seed = options.seed, .shuffle = options.shuffle}, cursor);
}

int64_t EpisodeRun::steps_per_epoch() {
  const data::BatchOptions options = context_.batches();
  return divide_up(order_from({})->rows_per_epoch(),
                   options.rows_per_micro_batch * options.micro_batches * options.dp_size);
}

void EpisodeRun::start(roles::Trainer& trainer, const LoopState& state) {
  trainer_ = &trainer;
  samples_ = make_rollout_worker(context_, trainer);
  const data::BatchOptions options = context_.batches();
  source_ = std::make_shared<EpisodeSource>(
      context_.world, trainer, train_, order_from(state.cursor), samples_,
      EpisodeSource::Options{.rows_per_micro_batch = options.rows_per_micro_batch,
                             .micro_batches = options.micro_batches,
                             .samples_folder = samples_folder(*context_.recipe().generation,
                                                              context_.rank.run_folder)});

  teaching_ = make_teaching(
      context_, [source = source_](int64_t step) { return (*source)(step); },
      /*cached_rows=*/nullptr);
  teaching_.objective->also_add([source = source_](MetricsRow& row) { source->add_metrics(row); });
}

Evaluator EpisodeRun::evaluator() {
  if (!eval_) return {};
  return [this](int64_t step) { return evaluate(step); };
}

// Draws the episodes of this rank's held-out prompts, by the student as it is after `step`: its
// weights of then are those that the next step draws with.
Rollout EpisodeRun::draw_held_out(int64_t step) {
  RolloutRequest request =
      held_out_request(*eval_, context_.world.dp(), *context_.recipe().generation, step);
  samples_->sync(trainer_->decoder(), static_cast<uint64_t>(step) + 1, {});
  Rollout rollout = samples_->finish(samples_->begin(std::move(request)));
  take_own_rewards(rollout);
  return rollout;
}

MetricsRow EpisodeRun::evaluate(int64_t step) {
  parallel::World& world = context_.world;
  const Rollout rollout = parallel::run_on_all(world.all(), [&] { return draw_held_out(step); });
  MetricsRow row = held_out_metrics(rollout, *context_.recipe().generation, world.dp(), step);
  if (!teaching_.evaluate) return row;

  // Every rank asks as often as the one that has the most.
  int64_t episodes = 0;
  for (const RolloutGroup& group : rollout.groups)
    episodes += to_int64(group.samples.size());
  episodes = world.dp().all_reduce(episodes, parallel::ReduceOp::kMax);
  const int64_t rows = context_.batches().rows_per_micro_batch;
  teaching_.evaluate(*trainer_, episode_batches(rollout, rows, divide_up(episodes, rows)), world,
                     row);
  return row;
}

}  // namespace retort::recipes
