// A recipe's `train:` block: how long, how much at once, the optimizer, and what is logged,
// evaluated and saved when.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/units.h"
#include "parallel/loss_scaler.h"
#include "parallel/lr_schedule.h"

namespace retort::recipes {

// Parameters that weight decay leaves alone, by what they are.
enum class NoDecay { kNorm, kBias };

// A run stops or goes on when a checkpoint cannot be saved.
enum class OnSaveError { kStop, kContinue };

// A run that has stopped learning is warned about, or stopped.
enum class OnDivergence { kWarn, kStop };

// Says which model of a run is its best, and how long the run waits for a better one.
struct BestModelOptions {
  std::string metric;  // train.metric_for_best_model; "": no model is the best
  bool greater_is_better = false;
  int64_t patience = 0;  // train.early_stopping_patience; 0: never
};

struct TrainOptions {
  // These hold when neither key of a pair of alternatives is given.
  static constexpr int64_t kDefaultMaxSteps = 200;
  static constexpr int64_t kDefaultBatchSize = 8;

  std::optional<int64_t> max_steps;  // exactly one of max_steps and num_train_epochs once resolved
  std::optional<double> num_train_epochs;
  // exactly one of this and tokens_per_batch once resolved
  std::optional<int64_t> per_device_train_batch_size;
  std::optional<int64_t> tokens_per_batch;  // tokens of one micro-batch on one dp rank
  int64_t gradient_accumulation_steps = 1;
  std::optional<double> learning_rate;  // there once resolved
  parallel::LrSchedulerType lr_scheduler_type = parallel::LrSchedulerType::kCosine;
  int64_t warmup_steps = 0;
  double warmup_ratio = 0.0;  // share of max_steps
  double min_lr = 0.0;
  std::optional<int64_t> lr_decay_steps;     // null: all steps of the run
  int64_t lr_num_cycles = 1;                 // cosine_with_restarts
  double lr_power = 1.0;                     // polynomial
  std::optional<int64_t> lr_timescale;       // inverse_sqrt; null: by the warm-up
  std::optional<int64_t> lr_cooldown_steps;  // warmup_stable_decay, which needs it
  parallel::LrCooldownType lr_cooldown_type = parallel::LrCooldownType::kCosine;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double weight_decay = 0.0;
  std::vector<NoDecay> no_decay{NoDecay::kNorm, NoDecay::kBias};
  double max_grad_norm = 1.0;        // 0: gradients are not clipped
  int64_t skip_nonfinite_steps = 0;  // in a row; 0: the first one ends the run
  OnDivergence on_divergence = OnDivergence::kWarn;
  double initial_loss_scale = parallel::LossScaler::Options().initial_scale;
  double min_loss_scale = parallel::LossScaler::Options().min_scale;
  int64_t loss_scale_window = parallel::LossScaler::Options().window;
  std::optional<double> neftune_noise_alpha;  // null: no noise
  bool gradient_checkpointing = false;
  int64_t gradient_checkpointing_every = 1;
  int64_t logging_steps = 1;
  bool log_layer_grad_norms = false;
  int64_t eval_steps = 50;       // 0: only at the end
  int64_t save_steps = 100;      // 0: only at the end
  int64_t save_total_limit = 3;  // 0: all are kept
  bool async_save = false;
  OnSaveError on_save_error = OnSaveError::kStop;
  bool eval_on_start = false;
  std::optional<std::string> metric_for_best_model;
  std::optional<bool> greater_is_better;  // null: by the metric's name
  int64_t early_stopping_patience = 0;    // evaluations; 0: never
  std::vector<std::string> checkpoint_command;
  Duration checkpoint_command_timeout{600'000};
  int64_t batch_size_rampup_steps = 0;
  ByteSize grad_bucket_bytes{uint64_t{40} << 20};
  std::optional<Duration> max_time;
  int64_t exit_interval = 0;  // 0: never

  template <class V>
  void fields(V& visit) {
    visit("max_steps", max_steps,
          "optimizer steps; alternative to num_train_epochs; 200 when neither is given");
    visit("num_train_epochs", num_train_epochs,
          "passes over the training data; alternative to max_steps");
    visit("per_device_train_batch_size", per_device_train_batch_size,
          "rows (packing: rows of data.max_length) of a micro-batch on one dp rank; alternative to "
          "tokens_per_batch; 8 "
          "when neither is given");
    visit("tokens_per_batch", tokens_per_batch,
          "tokens of a micro-batch on one dp rank; alternative to per_device_train_batch_size");
    visit("gradient_accumulation_steps", gradient_accumulation_steps,
          "micro-batches of one optimizer step");

    // The optimizer and its schedule.
    visit("learning_rate", learning_rate,
          "peak learning rate; null: 2e-5 for sft and rejection_sampling, 1e-4 for reward_model, "
          "1e-6 for all others, and ten times that with roles.student.lora");
    visit("lr_scheduler_type", lr_scheduler_type, "course of the learning rate after the warm-up");
    visit("warmup_steps", warmup_steps, "steps of linear warm-up; alternative to warmup_ratio");
    visit("warmup_ratio", warmup_ratio,
          "warm-up as a share of all steps, or of lr_decay_steps; alternative to warmup_steps");
    visit("min_lr", min_lr, "learning rate at the end of the schedule");
    visit("lr_decay_steps", lr_decay_steps,
          "step at which the schedule comes to its end, min_lr, where the rate stays; null: the "
          "last step of the run");
    visit("lr_num_cycles", lr_num_cycles,
          "lr_scheduler_type: cosine_with_restarts: how often the rate falls from its peak to "
          "min_lr");
    visit("lr_power", lr_power,
          "lr_scheduler_type: polynomial: power of the share of steps that is left, which the way "
          "down to min_lr goes by");
    visit("lr_timescale", lr_timescale,
          "lr_scheduler_type: inverse_sqrt: steps after the warm-up in which the rate falls to "
          "the peak divided by the root of 2; null: those of the warm-up, 10000 without one");
    visit("lr_cooldown_steps", lr_cooldown_steps,
          "lr_scheduler_type: warmup_stable_decay: the last steps of the schedule, in which the "
          "rate falls; before them it stays at its peak");
    visit("lr_cooldown_type", lr_cooldown_type,
          "lr_scheduler_type: warmup_stable_decay: course of the rate in the last steps");
    visit("adam_beta1", adam_beta1, "decay of AdamW's first moment");
    visit("adam_beta2", adam_beta2, "decay of AdamW's second moment");
    visit("adam_epsilon", adam_epsilon, "added to the root of AdamW's second moment");
    visit("weight_decay", weight_decay, "decoupled weight decay");
    visit("no_decay", no_decay,
          "parameters that weight_decay leaves alone, as transformers' Trainer does; []: it is on "
          "all of them");
    visit("max_grad_norm", max_grad_norm,
          "global gradient norm above which gradients are scaled down; 0: never");
    visit("skip_nonfinite_steps", skip_nonfinite_steps,
          "how many steps in a row may be skipped, changing nothing, as their loss or gradient is "
          "not finite; one more ends the run; 0: the first does");
    visit("on_divergence", on_divergence,
          "of a loss that has left for good, or a gradient that is 0, for 20 steps; warn: that is "
          "told, and the run goes on; stop: it ends with a checkpoint and exit code 5. A loss with "
          "a bound (dft, kto, jsd, tvd), or around 0, is judged by its gradient alone");
    visit(
        "initial_loss_scale", initial_loss_scale,
        "roles.student.dtype: float16: what the loss is multiplied with before its backward pass, "
        "at first; halved, and the step skipped, where a gradient is not finite");
    visit("min_loss_scale", min_loss_scale,
          "the least that the loss scale is halved to; a gradient that is not finite there counts "
          "for skip_nonfinite_steps, or ends the run");
    visit("loss_scale_window", loss_scale_window,
          "steps in a row without such a gradient after which the loss scale is doubled");

    visit("neftune_noise_alpha", neftune_noise_alpha,
          "recipe: sft: uniform noise on the embeddings of what is trained on, at most alpha / "
          "sqrt(tokens of the sample * hidden size) (NEFTune; 5 is usual); null: none");

    // Memory.
    visit("gradient_checkpointing", gradient_checkpointing,
          "recompute activations in the backward pass to save memory");
    visit("gradient_checkpointing_every", gradient_checkpointing_every,
          "recompute every n-th layer only and keep the others' activations; with "
          "gradient_checkpointing");

    // These say when something happens.
    visit("logging_steps", logging_steps, "steps between lines of metrics.jsonl");
    visit("log_layer_grad_norms", log_layer_grad_norms,
          "also log the gradient norm of each layer, of the embedding, the last norm and the head");
    visit("eval_steps", eval_steps, "steps between evaluations on data.eval; 0: only at the end");
    visit("eval_on_start", eval_on_start, "also evaluate before the first step, as step 0");
    visit("metric_for_best_model", metric_for_best_model,
          "a metric of the evaluations, e.g. eval_loss: a step that is the best so far is saved, "
          "its checkpoint is kept besides save_total_limit, and the link `best` points at it");
    visit("greater_is_better", greater_is_better,
          "of metric_for_best_model; null: unless its name ends with loss");
    visit("early_stopping_patience", early_stopping_patience,
          "evaluations in a row that are not the best so far after which the run ends, as at its "
          "last step; 0: never");
    visit("save_steps", save_steps, "steps between checkpoints; 0: only at the end");
    visit("save_total_limit", save_total_limit, "newest checkpoints that are kept; 0: all");
    visit("async_save", async_save,
          "go on training while a checkpoint is written, from a copy of the parameters and the "
          "optimizer's state; needs "
          "save_steps");
    visit("on_save_error", on_save_error,
          "of a checkpoint that cannot be saved, on a full disk for one; stop: the run ends with "
          "exit code 3; continue: that is told, in status.json too, and the run goes on to the "
          "next one; but for the last one, without which it ends with exit code 3");
    visit(
        "checkpoint_command", checkpoint_command,
        "a program and its arguments, run by student/0 for each checkpoint that is complete, with "
        "its folder as the last argument; if it fails that is told, and the run goes on");
    visit("checkpoint_command_timeout", checkpoint_command_timeout,
          "time for checkpoint_command with one checkpoint; then it is killed");
    visit("batch_size_rampup_steps", batch_size_rampup_steps,
          "steps over which the micro-batches of a step grow from 1 to "
          "gradient_accumulation_steps; 0: all from the start");
    visit("grad_bucket_bytes", grad_bucket_bytes,
          "fp32 gradients that are summed over dp in one message while the backward pass goes on");
    visit("max_time", max_time,
          "wall-clock time of training after which every rank saves the same step and the run "
          "ends, to be resumed");
    visit("exit_interval", exit_interval,
          "end the run after every so many steps with a checkpoint and exit code 4, to be resumed; "
          "0: never");
  }
  // kInvalidArgument naming the field: ranges, both of two alternatives.
  void validate() const;
  // Fills in what holds when neither of two alternatives was given, and where there is no learning
  // rate RecipeType::learning_rate.
  void resolve(double usual_learning_rate);
  parallel::LossScaler::Options loss_scale() const;
  BestModelOptions best_model() const;
  // The ends of the names of what no_decay lists.
  std::vector<std::string> no_decay_suffixes() const;
};

}  // namespace retort::recipes

template <>
struct retort::EnumNames<retort::recipes::NoDecay> {
  using E = retort::recipes::NoDecay;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"norm", E::kNorm}, {"bias", E::kBias}}};
};

template <>
struct retort::EnumNames<retort::recipes::OnSaveError> {
  using E = retort::recipes::OnSaveError;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"stop", E::kStop}, {"continue", E::kContinue}}};
};

template <>
struct retort::EnumNames<retort::recipes::OnDivergence> {
  using E = retort::recipes::OnDivergence;
  static constexpr std::array<std::pair<std::string_view, E>, 2> values{
      {{"warn", E::kWarn}, {"stop", E::kStop}}};
};
