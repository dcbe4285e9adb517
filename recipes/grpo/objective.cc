#include "recipes/grpo/objective.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/sizes.h"
#include "parallel/vote.h"
#include "recipes/grpo/reward_kl.h"
#include "recipes/grpo/round_rewards.h"
#include "recipes/grpo/student_rows.h"
#include "recipes/rollout/lost_round.h"
#include "recipes/rollout/prompt_sharding.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/run/loop/batch_objective.h"

namespace retort::recipes {
namespace {

// Makes the questions to the reference, if there is one.
std::unique_ptr<ReferenceQuestions> questions_of(std::unique_ptr<Reference> reference,
                                                 const BatchSizes& sizes, const GrpoOptions& grpo) {
  if (!reference) return nullptr;
  return std::make_unique<ReferenceQuestions>(
      std::move(reference), ReferenceQuestions::Options{
                                .sizes = sizes, .mask_truncated = grpo.mask_truncated_completions});
}

}  // namespace

GrpoObjective::GrpoObjective(Parts parts, Options options)
    : world_(parts.world),
      trainer_(parts.trainer),
      prompts_(std::move(parts.prompts)),
      stream_(std::move(parts.stream)),
      samples_(std::move(parts.samples)),
      scorer_(std::move(parts.scorer)),
      options_(std::move(options)),
      shares_prompts_(trainer_.decoder().device().is_cpu()),
      sizes_{.num_generations = options_.num_generations,
             .num_mini_batches = options_.grpo.num_mini_batches,
             .micro_batches = options_.micro_batches,
             .rows_per_micro_batch = options_.rows_per_micro_batch,
             .dp_rank = world_.dp().rank(),
             .dp_size = world_.dp().size()},
      reference_(questions_of(std::move(parts.reference), sizes_, options_.grpo)),
      loss_(world_, trainer_, reference_.get(),
            {.grpo = options_.grpo,
             .max_new_tokens = options_.max_new_tokens,
             .temperature = options_.temperature,
             .num_ids = options_.num_ids}),
      resampler_(world_, *prompts_, *stream_, *samples_, *scorer_,
                 {.num_generations = options_.num_generations,
                  .max_new_tokens = options_.max_new_tokens,
                  .overlong_penalty_tokens = options_.grpo.overlong_penalty_tokens}),
      drawn_to_(options_.start_cursor),
      next_round_(options_.start_step / options_.grpo.steps_per_rollout()) {
  RETORT_CHECK((options_.grpo.beta > 0) == (reference_ != nullptr))
      << "a reference that is missing or not used";
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

// Returns the last round that may be asked for while `round` is trained on. A round runs at most as
// far ahead as its weights may be stale in its last step. None begins at or after a step that saves
// a checkpoint, because a resumed run would draw it with the weights of that checkpoint.
int64_t GrpoObjective::last_round_ahead(int64_t round, int64_t done) const {
  const int64_t steps = options_.grpo.steps_per_rollout();
  const int64_t left = options_.grpo.staleness_left(options_.sync_every_steps);
  const int64_t ahead = std::max<int64_t>(0, left) / steps;
  int64_t end = options_.max_steps;
  for (const int64_t every : {options_.save_steps, options_.exit_interval})
    if (every > 0) end = std::min(end, (done / every + 1) * every);

  int64_t last = round;
  while (last < round + ahead && (last + 1) * steps < end)
    ++last;
  return last;
}

// After a checkpoint weights are always pushed, because a run that is resumed there has pushed
// nothing yet.
bool GrpoObjective::push_is_due(int64_t done) const {
  const auto pushed = static_cast<int64_t>(samples_->pushed_version());
  return saves_after(done) || pushed == 0 || done + 1 - pushed >= options_.sync_every_steps;
}

bool GrpoObjective::pushes_after(int64_t done) const {
  if (done == options_.max_steps) return true;
  const int64_t round = done / options_.grpo.steps_per_rollout();
  const bool begins = done % options_.grpo.steps_per_rollout() == 0;
  return begins && next_round_ <= last_round_ahead(round, done) && push_is_due(done);
}

// Requests the rollout of `round` and of the rounds that may run ahead of it, with the student's
// weights of now.
void GrpoObjective::request_rounds(int64_t round, int64_t step) {
  const int64_t done = step - 1;
  const int64_t last = last_round_ahead(round, done);
  if (next_round_ > last) return;

  // Requests in flight name older weights: sync() lets generators accept these before it sends the
  // new ones.
  if (push_is_due(done))
    samples_->sync(trainer_.decoder(), static_cast<uint64_t>(done) + 1, in_flight());
  for (; next_round_ <= last; ++next_round_) {
    Round fresh{
        .number = next_round_,
        .rows = next_prompts(*stream_, options_.prompts_per_round, options_.grpo.num_mini_batches),
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
  const int64_t steps = options_.grpo.steps_per_rollout();
  const int64_t round = (step - 1) / steps;
  // A process that is resumed in the middle of a round has no batches yet, and draws the round.
  const bool first = batches_.empty() || (step - 1) % steps == 0;
  first_batch_ =
      static_cast<size_t>((step - 1) % options_.grpo.num_mini_batches * options_.micro_batches);
  if (first) {
    request_rounds(round, step);
    RETORT_CHECK(!requested_.empty() && requested_.front().number == round)
        << "round " << round << " was not requested";
    Round current = std::move(requested_.front());
    requested_.pop_front();
    before_ = current.before;
    prepare(std::move(current), step);
  }
  StepInfo info = info_;
  // A run that is resumed in the middle of a round draws that round again.
  if (step % steps != 0) info.after = before_;
  return info;
}

// Waits for the round's samples and their rewards, and draws others in place of prompts without a
// signal, as often as max_resamples allows.
Rollout GrpoObjective::draw(Round& round, int64_t step) {
  // Without a pipeline the rank that scores also asks the reference: it does so while it waits for
  // scores, unless these samples may still be replaced.
  const bool stays = options_.grpo.max_resamples == 0;
  if (reference_ && stays && world_.leads_replica() && world_.pp().size() == 1)
    round.pending.meanwhile = [this, request = round.pending.request] {
      reference_->ask_early(request, *scorer_);
    };
  Rollout rollout = parallel::run_on_all(world_.all(), [&] {
    return scorer_->finish(*samples_, std::move(round.pending), world_.mp());
  });

  // The penalty stands before the search for a signal: it may be the only difference in a group.
  punish_overlong(rollout, options_.max_new_tokens, options_.grpo.overlong_penalty_tokens);

  num_resampled_ = 0;
  for (int64_t i = 0; i < options_.grpo.max_resamples; ++i) {
    // All ranks find the same places in the rewards of all, so that they draw together or not at
    // all.
    const GrpoRewards rewards = rewards_of(rollout, round);
    const std::vector<int64_t> places =
        places_without_signal(rewards.objectives.defined() ? rewards.objectives : rewards.totals,
                              options_.num_generations);
    if (places.empty()) break;
    const Resampler::Drawn drawn = resampler_.draw(rollout, places, step);
    num_resampled_ += drawn.num_prompts;
    drawn_to_ = drawn.after;
  }

  // A run that is resumed after this round begins behind all prompts that were drawn, unless later
  // rounds are requested already: it draws these again, from behind this round's own prompts.
  info_.after = requested_.empty() ? drawn_to_ : round.rows.after;
  return rollout;
}

// Returns the rewards of all ranks' samples, because advantages may be normalised over the whole
// rollout.
GrpoRewards GrpoObjective::rewards_of(const Rollout& rollout, const Round& round) const {
  const int64_t groups = to_int64(round.rows.rows.size());
  const int64_t generations = options_.num_generations;
  GrpoRewards rewards;
  rewards.totals = gather_rewards(world_, rollout, groups, generations);
  if (!options_.grpo.decouples_rewards()) return rewards;

  // The penalty on length is one more objective. A reward without a weight is only told of, so its
  // numbers are zeroed here.
  rewards.weights = options_.reward_weights;
  const bool penalty = options_.grpo.overlong_penalty_tokens > 0;
  if (penalty) rewards.weights.push_back(1);
  rewards.objectives =
      gather_components(world_, rollout, groups, generations, scorer_->names().size(), penalty);
  RETORT_CHECK(rewards.objectives.size(1) == to_int64(rewards.weights.size()))
      << "a reward without a weight";
  for (size_t k = 0; k < rewards.weights.size(); ++k)
    if (rewards.weights[k] == 0) rewards.objectives.select(1, to_int64(k)).zero_();
  return rewards;
}

void GrpoObjective::prepare(Round round, int64_t step) {
  info_ = {.micro_batches = static_cast<size_t>(options_.micro_batches),
           .after = {},
           .epoch = round.rows.epoch};
  const int64_t num_prompts = to_int64(round.rows.rows.size());
  if (reference_) reference_->begin_round(step, num_prompts);
  Rollout rollout = draw(round, step);

  // The KL in a reward needs the reference's answers for all samples. The reference is asked batch
  // by batch, so the batches are made before their advantages are known.
  std::optional<RewardKl> kl;
  if (options_.grpo.kl_in_reward) {
    parallel::run_on_all(world_.all(), [&] {
      const int64_t samples = to_int64(rollout.groups.size()) * options_.num_generations;
      batches_ = make_batches(rollout, num_prompts, at::zeros({samples}));
    });
    // The vote above stands between: a rank that has no batches would be missing in these
    // collectives.
    kl = parallel::run_on_all(world_.all(), [&] {
      return take_kl_from_rewards(world_, rollout, batches_, *reference_, options_.grpo.beta);
    });
  }

  // Advantages are formed over the whole rollout, alike on every rank; this rank trains on its own
  // prompts.
  const losses::Advantages advantages =
      grpo_advantages(rewards_of(rollout, round), options_.num_generations, options_.grpo);
  const at::Tensor mine = values_of_rank(world_, advantages.advantages, options_.num_generations);
  const int64_t num_samples = advantages.advantages.numel();
  parallel::run_on_all(world_.all(), [&] {
    save_samples(sample_files_, options_.samples_folder, world_, rollout, step, scorer_->names());
    if (options_.episodes && advantages.num_unscorable == num_samples)
      refuse_lost_round(rollout, num_samples, "can be scored");
    if (options_.grpo.kl_in_reward)
      for (GrpoMicroBatch& batch : batches_)
        batch.advantages = mine.index_select(0, at::tensor(batch.places, at::kLong));
    else
      batches_ = make_batches(rollout, num_prompts, mine);
  });

  if (options_.grpo.recomputes_old())
    parallel::run_on_all(world_.all(), [&] { remember_old_policy(); });

  weight_version_ = rollout.weight_version;
  RoundFacts facts{.reward_names = scorer_->names(),
                   .last_push_seconds = samples_->last_push_seconds(),
                   .kl = kl,
                   .overlong_penalty_sum = {},
                   .num_resampled_prompts = {},
                   .episodes = options_.episodes};
  if (options_.grpo.overlong_penalty_tokens > 0)
    facts.overlong_penalty_sum = overlong_penalty_sum(rollout, options_.max_new_tokens,
                                                      options_.grpo.overlong_penalty_tokens);
  if (options_.grpo.max_resamples > 0) facts.num_resampled_prompts = num_resampled_;
  round_metrics_ = round_metrics(world_, rollout, advantages, facts, step);
  if (world_.rank() == 0) other_prompts_.tell(round_metrics_.other_prompts);
}

// Remembers what the student says of the samples of the steps that come after the next one. For the
// next one the loss itself says it, as the weights are the same.
void GrpoObjective::remember_old_policy() {
  const size_t end = first_batch_ + info_.micro_batches;
  for (size_t i = 0; i < batches_.size(); ++i)
    if (i < first_batch_ || i >= end)
      batches_[i].old_logps =
          student_rows(trainer_, batches_[i], options_.temperature, options_.num_ids).log_probs;
}

std::vector<GrpoMicroBatch> GrpoObjective::make_batches(const Rollout& rollout, int64_t num_prompts,
                                                        const at::Tensor& advantages) {
  const bool all_count = options_.grpo.all_samples_count();
  const auto generations = static_cast<size_t>(options_.num_generations);
  const float* advantage = advantages.const_data_ptr<float>();
  const auto has_signal = [&](size_t prompt) {
    const float* first = advantage + prompt * generations;
    return all_count ||
           std::any_of(first, first + generations, [](float value) { return value != 0; });
  };

  // An unscorable sample keeps its place, so that no other moves to another micro-batch, but takes
  // part in nothing. So does one that is masked or of a group without a signal, but for the
  // divisor (GrpoMicroBatch).
  std::vector<GrpoMicroBatch> batches;
  for (const std::vector<size_t>& places : mini_batch_split(num_prompts, sizes_)) {
    OpenGrpoMicroBatch open;
    for (const size_t place : places) {
      const RolloutGroup& group = rollout.groups[place / generations];
      const RolloutSample& sample = group.samples[place % generations];
      const bool cut = sample.completion.finish_reason == models::FinishReason::kLength;
      if (!sample.reward) continue;
      if (cut && options_.grpo.mask_truncated_completions)
        open.mask(group.prompt, sample);
      else if (has_signal(place / generations))
        open.add(group.prompt, sample, advantage[place], to_int64(place));
      else
        open.leave_out(group.prompt, sample);
    }
    batches.push_back(std::move(open).close(shares_prompts_));
    if (reference_)
      batches.back().reference = reference_->ask(batches.size() - 1, batches.back().batch);
  }
  return batches;
}

void GrpoObjective::begin_step(parallel::Group& dp) {
  loss_.begin_step(std::span(batches_).subspan(first_batch_, info_.micro_batches), dp);
}

void GrpoObjective::finish_step(const StepSums& sums, MetricsRow& row) {
  const MetricsRow& round = round_metrics_.row;
  row.values.insert(row.values.end(), round.values.begin(), round.values.end());

  // Each step on the same samples is one more behind the weights that drew them.
  const auto version = static_cast<int64_t>(weight_version_);
  row.add("weight_version", version).add("staleness", row.step - version);
  loss_.add_metrics(sums, row);
}

std::string GrpoObjective::origins(size_t index) const {
  return list_origins(batch(index).batch.samples);
}

}  // namespace retort::recipes
