#include "recipes/document/train_options.h"

#include <cmath>
#include <string>

namespace retort::recipes {
namespace {

[[noreturn]] void refuse_value(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

void at_least(const char* name, int64_t value, int64_t least) {
  if (value < least)
    refuse_value(std::string(name) + " must be at least " + std::to_string(least) + ", got " +
                 std::to_string(value));
}

void not_negative(const char* name, double value) {
  if (!(value >= 0) || !std::isfinite(value))
    refuse_value(std::string(name) + " must be a finite number, 0 or more");
}

bool is_type(const TrainOptions& train, parallel::LrSchedulerType type) {
  return train.lr_scheduler_type == type;
}

// Checks the keys for the end of a schedule, which some schedules do not have.
void check_end_of_schedule(const TrainOptions& train) {
  const bool constant = is_type(train, parallel::LrSchedulerType::kConstant);
  const bool endless = constant || is_type(train, parallel::LrSchedulerType::kInverseSqrt);
  const std::string type = constant ? "constant" : "inverse_sqrt";
  if (train.min_lr != 0 && endless)
    refuse_value("min_lr has no effect with lr_scheduler_type " + type +
                 ": remove it or choose linear or cosine");
  if (!train.lr_decay_steps) return;
  if (endless)
    refuse_value("lr_decay_steps has no effect with lr_scheduler_type " + type + ": remove it");
  at_least("lr_decay_steps", *train.lr_decay_steps, 1);
  if (*train.lr_decay_steps <= train.warmup_steps)
    refuse_value("lr_decay_steps must be above warmup_steps, with which the schedule begins");
}

// Checks the keys that belong to one type of schedule each.
void check_schedule(const TrainOptions& train) {
  const TrainOptions defaults;
  // A key of another type of schedule would be silently ignored, so it is refused.
  if (is_type(train, parallel::LrSchedulerType::kCosineWithRestarts))
    at_least("lr_num_cycles", train.lr_num_cycles, 1);
  else if (train.lr_num_cycles != defaults.lr_num_cycles)
    refuse_value("lr_num_cycles has no effect without lr_scheduler_type: cosine_with_restarts");

  if (is_type(train, parallel::LrSchedulerType::kPolynomial)) {
    if (!(train.lr_power > 0) || !std::isfinite(train.lr_power))
      refuse_value("lr_power must be a finite number above 0");
  } else if (train.lr_power != defaults.lr_power) {
    refuse_value("lr_power has no effect without lr_scheduler_type: polynomial");
  }
  if (train.lr_timescale && !is_type(train, parallel::LrSchedulerType::kInverseSqrt))
    refuse_value("lr_timescale has no effect without lr_scheduler_type: inverse_sqrt");
  if (train.lr_timescale) at_least("lr_timescale", *train.lr_timescale, 1);

  if (!is_type(train, parallel::LrSchedulerType::kWarmupStableDecay)) {
    if (train.lr_cooldown_steps || train.lr_cooldown_type != defaults.lr_cooldown_type)
      refuse_value(std::string(train.lr_cooldown_steps ? "lr_cooldown_steps" : "lr_cooldown_type") +
                   " has no effect without lr_scheduler_type: warmup_stable_decay");
    return;
  }
  if (!train.lr_cooldown_steps)
    refuse_value(
        "lr_scheduler_type: warmup_stable_decay needs lr_cooldown_steps, the last steps of the "
        "schedule, in which the rate falls");
  at_least("lr_cooldown_steps", *train.lr_cooldown_steps, 1);
  const auto end = train.lr_decay_steps ? train.lr_decay_steps : train.max_steps;
  if (end && train.warmup_steps + *train.lr_cooldown_steps > *end)
    refuse_value("warmup_steps + lr_cooldown_steps must be at most the " + std::to_string(*end) +
                 " steps of the schedule");
}

// Checks the keys for the best model, which is chosen by a metric of evaluations.
void check_best_model(const TrainOptions& train) {
  at_least("early_stopping_patience", train.early_stopping_patience, 0);
  if (train.metric_for_best_model && !train.metric_for_best_model->starts_with("eval_"))
    refuse_value("metric_for_best_model must be a metric of evaluations, such as eval_loss");
  if (train.metric_for_best_model) return;
  if (train.greater_is_better)
    refuse_value("greater_is_better has no effect without metric_for_best_model");
  if (train.early_stopping_patience > 0)
    refuse_value("early_stopping_patience has no effect without metric_for_best_model");
}

void check_checkpoint_command(const TrainOptions& train) {
  if (train.checkpoint_command_timeout.count() <= 0)
    refuse_value("checkpoint_command_timeout must be longer than 0s");
  if (train.checkpoint_command.empty()) {
    if (train.checkpoint_command_timeout != TrainOptions().checkpoint_command_timeout)
      refuse_value("checkpoint_command_timeout has no effect without checkpoint_command");
    return;
  }
  if (train.checkpoint_command.front().empty())
    refuse_value("checkpoint_command begins with an empty word; write a program and its arguments");
}

void below_one(const char* name, double value) {
  if (!(value >= 0 && value < 1)) refuse_value(std::string(name) + " must be in [0, 1)");
}

// Refuses pairs of keys of which only one may be written.
void check_alternatives(const TrainOptions& train) {
  if (train.max_steps && train.num_train_epochs)
    refuse_value("max_steps and num_train_epochs exclude each other: keep one of them");
  if (train.per_device_train_batch_size && train.tokens_per_batch)
    refuse_value(
        "per_device_train_batch_size and tokens_per_batch exclude each other: keep one of them");
  if (train.warmup_steps != 0 && train.warmup_ratio != 0)
    refuse_value("warmup_steps and warmup_ratio exclude each other: keep one of them");
}

// Checks how long training goes on, and how much it computes at once.
void check_amounts(const TrainOptions& train) {
  if (train.max_steps) at_least("max_steps", *train.max_steps, 1);
  if (train.num_train_epochs &&
      (!(*train.num_train_epochs > 0) || !std::isfinite(*train.num_train_epochs)))
    refuse_value("num_train_epochs must be a finite number above 0");
  if (train.per_device_train_batch_size)
    at_least("per_device_train_batch_size", *train.per_device_train_batch_size, 1);
  if (train.tokens_per_batch) at_least("tokens_per_batch", *train.tokens_per_batch, 1);
  at_least("gradient_accumulation_steps", train.gradient_accumulation_steps, 1);
}

// Checks the optimizer and its schedule.
void check_optimizer(const TrainOptions& train) {
  if (train.learning_rate) not_negative("learning_rate", *train.learning_rate);
  at_least("warmup_steps", train.warmup_steps, 0);
  below_one("warmup_ratio", train.warmup_ratio);
  not_negative("min_lr", train.min_lr);
  if (train.learning_rate && train.min_lr > *train.learning_rate)
    refuse_value("min_lr must not be above learning_rate");
  check_end_of_schedule(train);
  check_schedule(train);
  below_one("adam_beta1", train.adam_beta1);
  below_one("adam_beta2", train.adam_beta2);
  if (!(train.adam_epsilon > 0) || !std::isfinite(train.adam_epsilon))
    refuse_value("adam_epsilon must be a finite number above 0");
  not_negative("weight_decay", train.weight_decay);
  if (train.weight_decay == 0 && train.no_decay != TrainOptions().no_decay)
    refuse_value("no_decay has no effect with weight_decay: 0, which decays nothing: remove it");
  not_negative("max_grad_norm", train.max_grad_norm);
  at_least("skip_nonfinite_steps", train.skip_nonfinite_steps, 0);
  train.loss_scale().validate();
  if (train.neftune_noise_alpha &&
      !(*train.neftune_noise_alpha > 0 && std::isfinite(*train.neftune_noise_alpha)))
    refuse_value("neftune_noise_alpha must be a finite number above 0; leave it out for no noise");
}

// Checks the intervals of what happens during training.
void check_events(const TrainOptions& train) {
  at_least("logging_steps", train.logging_steps, 1);
  at_least("eval_steps", train.eval_steps, 0);
  at_least("save_steps", train.save_steps, 0);
  at_least("save_total_limit", train.save_total_limit, 0);
  at_least("exit_interval", train.exit_interval, 0);
  check_best_model(train);
  if (train.early_stopping_patience > 0 && train.eval_steps == 0)
    refuse_value(
        "early_stopping_patience has no effect with eval_steps 0, which evaluates at the end");
  check_checkpoint_command(train);
  at_least("batch_size_rampup_steps", train.batch_size_rampup_steps, 0);
  if (train.batch_size_rampup_steps > 0 && train.gradient_accumulation_steps == 1)
    refuse_value(
        "batch_size_rampup_steps has no effect with gradient_accumulation_steps: 1, which is where "
        "a ramp begins");
}

// Checks the keys that trade memory and time.
void check_memory_and_time(const TrainOptions& train) {
  at_least("gradient_checkpointing_every", train.gradient_checkpointing_every, 1);
  if (train.gradient_checkpointing_every > 1 && !train.gradient_checkpointing)
    refuse_value("gradient_checkpointing_every has no effect without gradient_checkpointing: true");
  if (train.grad_bucket_bytes.bytes < 4096) refuse_value("grad_bucket_bytes must be at least 4096");
  if (train.max_time && train.max_time->count() <= 0)
    refuse_value("max_time must be longer than 0s");
  if (train.async_save && train.save_steps == 0)
    refuse_value("async_save has no effect with save_steps 0, which saves only at the end");
  if (train.on_save_error == OnSaveError::kContinue && train.save_steps == 0 &&
      !train.metric_for_best_model)
    refuse_value(
        "on_save_error: continue has no effect with save_steps 0 and no metric_for_best_model: the "
        "run saves only at the end, and cannot go on from there");
}

}  // namespace

void TrainOptions::validate() const {
  check_alternatives(*this);
  check_amounts(*this);
  check_optimizer(*this);
  check_events(*this);
  check_memory_and_time(*this);
}

void TrainOptions::resolve(double usual_learning_rate) {
  if (!learning_rate) learning_rate = usual_learning_rate;
  if (!max_steps && !num_train_epochs) max_steps = kDefaultMaxSteps;
  if (!per_device_train_batch_size && !tokens_per_batch)
    per_device_train_batch_size = kDefaultBatchSize;
}

parallel::LossScaler::Options TrainOptions::loss_scale() const {
  return {.initial_scale = initial_loss_scale,
          .min_scale = min_loss_scale,
          .window = loss_scale_window};
}

BestModelOptions TrainOptions::best_model() const {
  if (!metric_for_best_model) return {};
  return {
      .metric = *metric_for_best_model,
      .greater_is_better = greater_is_better.value_or(!metric_for_best_model->ends_with("loss")),
      .patience = early_stopping_patience};
}

std::vector<std::string> TrainOptions::no_decay_suffixes() const {
  std::vector<std::string> suffixes;
  for (const NoDecay kind : no_decay)
    suffixes.emplace_back(kind == NoDecay::kNorm ? "norm.weight" : ".bias");
  return suffixes;
}

}  // namespace retort::recipes
