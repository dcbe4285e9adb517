#include "recipes/run/rank/student_options.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "recipes/roles/external_roles.h"
#include "recipes/roles/serving_roles.h"

namespace retort::recipes {
namespace {

// The two sections that may be the longest; the table is in the header.
Duration waits_at_start(const Recipe& recipe) {
  return static_cast<int64_t>(serving_roles(recipe).size()) *
         (longest_load_timeout(recipe) + recipe.rpc.timeout);
}

Duration waits_for_restart(const Recipe& recipe) {
  const auto roles = serving_roles(recipe);
  const bool any = std::any_of(roles.begin(), roles.end(), [&](const std::string& role) {
    return recipe.roles.at(role).restarts > 0;
  });
  return any ? longest_load_timeout(recipe) : Duration(0);
}

Duration waits_for_draw(const Recipe& recipe) {
  if (!recipe.generation) return Duration(0);
  const Duration samples = recipe.rpc.timeout + recipe.generation->timeout;
  const bool given_up = recipe.weight_sync && recipe.weight_sync->in_flight == InFlight::kAbort;
  const bool drawn_again = given_up || recipe.roles.at(recipe.generation->role).restarts > 0;
  Duration sum = drawn_again ? 2 * samples : samples;
  for (const rewards::RewardOptions& reward : recipe.rewards)
    sum += 2 * (reward.role ? longest_answer(recipe, *reward.role) : reward.longest_wait());
  if (!frozen_roles(recipe).empty()) sum += longest_answer(recipe);

  // An evaluation waits for weights, which wait for the rollouts that are drawn with older ones.
  const bool finishes = recipe.weight_sync && recipe.weight_sync->in_flight == InFlight::kFinish;
  if (finishes && !recipe.data.eval.empty()) sum += recipe.generation->timeout;
  return sum;
}

}  // namespace

int64_t total_steps(const TrainOptions& train, const std::function<int64_t()>& steps_per_epoch) {
  if (train.max_steps) return *train.max_steps;
  return static_cast<int64_t>(
      std::ceil(train.num_train_epochs.value() * static_cast<double>(steps_per_epoch())));
}

roles::Trainer::Options trainer_options(const TrainOptions& train, int64_t max_steps) {
  const int64_t schedule_steps = train.lr_decay_steps.value_or(max_steps);
  const int64_t warmup = train.warmup_ratio > 0
                             ? static_cast<int64_t>(std::ceil(train.warmup_ratio *
                                                              static_cast<double>(schedule_steps)))
                             : train.warmup_steps;

  // Where a run has epochs, or a share of its steps as warm-up, these numbers are known only now.
  const int64_t cooldown = train.lr_cooldown_steps.value_or(0);
  if (warmup + cooldown > schedule_steps && cooldown > 0)
    throw Error(ErrorCode::kInvalidArgument,
                "train.lr_cooldown_steps: " + std::to_string(warmup) + " steps of warm-up and " +
                    std::to_string(cooldown) + " of cooldown are more than the " +
                    std::to_string(schedule_steps) + " steps of the schedule");

  return {.adamw = {.beta1 = train.adam_beta1,
                    .beta2 = train.adam_beta2,
                    .eps = train.adam_epsilon,
                    .weight_decay = train.weight_decay,
                    .no_decay_suffixes = train.no_decay_suffixes()},
          .schedule = {.type = train.lr_scheduler_type,
                       .learning_rate = train.learning_rate.value(),
                       .min_lr = train.min_lr,
                       .warmup_steps = warmup,
                       .max_steps = schedule_steps,
                       .num_cycles = train.lr_num_cycles,
                       .power = train.lr_power,
                       .timescale = train.lr_timescale.value_or(0),
                       .cooldown_steps = cooldown,
                       .cooldown_type = train.lr_cooldown_type},
          .max_grad_norm = train.max_grad_norm,
          .bucket_bytes = static_cast<int64_t>(train.grad_bucket_bytes.bytes),
          .loss_scale = train.loss_scale()};
}

TrainLoopOptions loop_options(const TrainOptions& train, int64_t max_steps) {
  return {.max_steps = max_steps,
          .logging_steps = train.logging_steps,
          .eval_steps = train.eval_steps,
          .save_steps = train.save_steps,
          .exit_interval = train.exit_interval,
          .skip_nonfinite_steps = train.skip_nonfinite_steps,
          .log_layer_grad_norms = train.log_layer_grad_norms,
          .eval_on_start = train.eval_on_start,
          .stop_if_diverged = train.on_divergence == OnDivergence::kStop,
          .continue_on_save_error = train.on_save_error == OnSaveError::kContinue,
          .best = train.best_model()};
}

CheckpointStore::Options checkpoint_options(const TrainOptions& train) {
  return {.save_total_limit = train.save_total_limit, .async = train.async_save};
}

Duration student_timeout(const Recipe& recipe) {
  constexpr Duration kSlack = std::chrono::seconds(10);
  const Duration asked = recipe.launch.collective_timeout;
  if (serving_roles(recipe).empty()) return asked;
  const Duration draw = waits_for_draw(recipe) + waits_for_restart(recipe);
  return std::max(asked, std::max(waits_at_start(recipe), draw) + kSlack);
}

parallel::World::Options student_world_options(const RankContext& context) {
  parallel::World::Options options = context.world_options("world");
  options.layout = context.role_options().world;
  options.rank = context.rank;
  options.timeout = student_timeout(context.recipe);
  return options;
}

}  // namespace retort::recipes
