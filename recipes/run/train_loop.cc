#include "recipes/run/train_loop.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <cmath>
#include <deque>

#include "base/error.h"
#include "base/log.h"
#include "parallel/vote.h"
#include "recipes/run/checkpoint_folder.h"
#include "recipes/run/damaged_weights.h"
#include "recipes/run/divergence_watch.h"
#include "recipes/run/metric_sums.h"

namespace retort::recipes {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The samples are to blame unless the weights are.
void check_finite(double value, const Objective& objective, size_t micro_batch,
                  const roles::Trainer& trainer, bool may_skip) {
  if (std::isfinite(value)) return;
  std::string what =
      "the loss is " + std::to_string(value) + " on samples " + objective.origins(micro_batch);
  const std::string damaged = damaged_weights(trainer.decoder());
  if (!damaged.empty())
    what += "; not for their sake: the student's " + damaged +
            ", in the model's files or since an update; restore the weights";
  if (!may_skip) throw Error(ErrorCode::kInvalidArgument, what);
  RETORT_LOG(kWarning) << what;
}

// The forward passes and backward passes of one step. Every rank votes once, after its last forward
// pass or its first failure, so that no rank enters the gradient reduction alone. In a pipeline a
// failing rank ends the run instead: the others wait for its activations, and see it gone.
//
// A loss that is not finite is an error, or with `may_skip` makes that of the sums not finite. On a
// device the losses are looked at after the last backward pass, all together: the host waits for
// the device once, and one more vote tells all ranks.
StepSums compute_gradients(roles::Trainer& trainer, parallel::World& world, size_t micro_batches,
                           Objective& objective, bool may_skip) {
  StepSums sums;
  sums.values.resize(objective.num_values(), 0.0);
  trainer.begin_step();
  objective.begin_step(world.dp());

  const auto loss_of = [&](size_t i, const at::Tensor& hidden) {
    const at::Tensor loss = objective.loss_sum(trainer.decoder().head(), hidden, i, sums);
    sums.late.add(loss, [&, i](const double* value) {
      check_finite(*value, objective, i, trainer, may_skip);
      sums.loss += *value;
    });
    return loss;
  };

  if (world.pp().size() > 1) {
    trainer.run_pipeline(
        micro_batches, [&](size_t i) -> const models::PackedTokens& { return objective.tokens(i); },
        loss_of);
  } else {
    parallel::Vote vote(world.all());
    for (size_t i = 0; i < micro_batches; ++i) {
      const bool last = i + 1 == micro_batches;
      const at::Tensor loss =
          vote.attempt([&] { return loss_of(i, trainer.hidden(objective.tokens(i))); });
      if (last) vote.cast();
      trainer.backward(loss, last);
    }
  }
  if (!trainer.decoder().device().is_cpu())
    parallel::run_on_all(world.all(), [&] { sums.late.read(); });
  all_reduce(sums, world.dp_pp());
  return sums;
}

MetricsRow make_row(const StepSums& sums, double divisor, const roles::Trainer::Update& update,
                    const LoopState& state, double epoch, double step_time) {
  MetricsRow row{.step = state.step, .values = {}};
  row.add("epoch", epoch)
      .add("num_tokens", state.num_tokens)
      .add("loss", sums.loss / divisor)
      .add("learning_rate", update.learning_rate)
      .add("grad_norm", update.grad_norm)
      .add("step_time", step_time)
      .add("tokens_per_second", sums.num_tokens / step_time);
  return row;
}

// The update, unless the loss or the gradient is not finite and as many steps in a row may be
// skipped. The sums and the gradient's norm are those of all ranks, which decide alike.
roles::Trainer::Update update_or_skip(roles::Trainer& trainer, double loss, double divisor,
                                      bool may_skip) {
  using NonFinite = roles::Trainer::NonFinite;
  if (std::isfinite(loss))
    return trainer.finish_step(divisor, may_skip ? NonFinite::kSkip : NonFinite::kRefuse);
  // Without a rank whose own loss is not finite, their sum is too large.
  if (!may_skip)
    throw Error(ErrorCode::kInvalidArgument, "the sum of the loss over all ranks is not finite");
  return trainer.skip_step(divisor);
}

// A step that a smaller loss scale may mend counts among all skipped ones, but not for how many in
// a row may be: the scale bounds these by itself.
void count_overflow(double loss_scale, bool tells, LoopState& state) {
  state.skipped_steps += 1;
  if (tells) {
    RETORT_LOG(kWarning) << "step " << state.step
                         << " is skipped, because a gradient in float16 is not finite at the loss "
                            "scale "
                         << loss_scale << "; the next step has a smaller one; "
                         << state.skipped_steps << " skipped in all";
  }
}

void count_skipped(bool skipped, int64_t allowed, bool tells, LoopState& state) {
  state.skipped_in_a_row = skipped ? state.skipped_in_a_row + 1 : 0;
  if (!skipped) return;
  state.skipped_steps += 1;
  if (tells) {
    RETORT_LOG(kWarning) << "step " << state.step
                         << " is skipped, because its loss or gradient is not finite: "
                         << state.skipped_in_a_row << " of at most " << allowed
                         << " in a row (train.skip_nonfinite_steps), " << state.skipped_steps
                         << " in all";
  }
}

// Whether the step is one after which `every` so many steps something happens.
bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

// Takes what is wrong with the run after a step into `divergence`. True: nothing was before. A
// gradient that was too large for its loss scale says nothing of the run.
bool see_divergence(DivergenceWatch& watch, int64_t number, double loss,
                    const roles::Trainer::Update& update, std::string& divergence) {
  if (update.overflowed) return false;
  const bool was_well = divergence.empty();
  divergence = watch.see({.number = number,
                          .loss = loss,
                          .grad_norm = update.grad_norm,
                          .learning_rate = update.learning_rate,
                          .skipped = update.skipped});
  return was_well && !divergence.empty();
}

// Steps that are drawn but not yet computed, oldest first.
class Lookahead {
 public:
  Lookahead(Objective& objective, int64_t next_step, int64_t max_steps)
      : objective_(objective), next_(next_step), max_(max_steps) {}

  StepInfo take() {
    while (next_ < max_ && static_cast<int64_t>(queue_.size()) <= objective_.lookahead()) {
      queue_.push_back(objective_.next_step(next_ + 1));
      ++next_;
    }
    const StepInfo step = queue_.front();
    queue_.pop_front();
    return step;
  }

 private:
  Objective& objective_;
  int64_t next_, max_;
  std::deque<StepInfo> queue_;
};

// What holds on this rank; or, agreed, on any of them.
struct AnyRank {
  bool stop_asked = false;
  bool still_writing = false;
  bool diverged = false;
};

// One all-reduce.
AnyRank ask_all(parallel::Group& all, const AnyRank& mine) {
  at::Tensor flags = at::tensor(
      {int64_t{mine.stop_asked}, int64_t{mine.still_writing}, int64_t{mine.diverged}}, at::kLong);
  if (all.size() > 1) all.all_reduce(flags, parallel::ReduceOp::kMax);
  const int64_t* flag = flags.const_data_ptr<int64_t>();
  return {.stop_asked = flag[0] != 0, .still_writing = flag[1] != 0, .diverged = flag[2] != 0};
}

// The first rank's evaluation decides for all: the sums of a recipe that samples are not on every
// rank.
bool see_on_all(parallel::Group& all, const BestModelOptions& options, const MetricsRow& row,
                BestModel& best) {
  if (options.metric.empty()) return false;
  const double mine = parallel::run_on_all(
      all, [&] { return all.rank() == 0 ? metric_of(row, options.metric) : 0.0; });
  return see_evaluation(options, row.step, all.all_reduce(mine), best);
}

// The checkpoints of a run that may go on without one of them.
class Saves {
 public:
  Saves(CheckpointStore& store, const roles::Trainer& trainer, parallel::World& world,
        const TrainLoopOptions& options, const TrainLoopHooks& hooks)
      : store_(store), trainer_(trainer), world_(world), options_(options), hooks_(hooks) {}

  // As the store's. The last one is what a run ends with, and cannot do without.
  void finish(int64_t step) {
    attempt(step, [&] { store_.finish(world_); });
  }
  void save(const LoopState& state, bool is_last, std::filesystem::path& saved) {
    finish(state.step);  // that before it, whose failure is not this one's
    const auto save = [&] { saved = store_.save(trainer_, world_, state); };
    if (is_last)
      save();
    else
      attempt(state.step, save);
  }

 private:
  template <class Work>
  void attempt(int64_t step, const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      // The same on all ranks.
      if (!options_.continue_on_save_error || !is_save_error(error)) throw;
      if (world_.rank() == 0 && hooks_.on_save_error)
        hooks_.on_save_error(step, error.message() +
                                       "; the run goes on without it (train.on_save_error: "
                                       "continue) until the next one");
    }
  }

  CheckpointStore& store_;
  const roles::Trainer& trainer_;
  parallel::World& world_;
  const TrainLoopOptions& options_;
  const TrainLoopHooks& hooks_;
};

}  // namespace

TrainLoopResult run_train_loop(roles::Trainer& trainer, parallel::World& world,
                               Objective& objective, const Evaluator& evaluator,
                               CheckpointStore& checkpoints, LoopState state,
                               const TrainLoopOptions& options, const TrainLoopHooks& hooks) {
  TrainLoopResult result{.step = state.step};
  Lookahead lookahead(objective, state.step, options.max_steps);
  const auto emit = [&](const MetricsRow& row) {
    if (world.rank() == 0 && hooks.on_metrics) hooks.on_metrics(row);
  };

  check_same_metric(options.best, state.best);
  DivergenceWatch watch(objective.loss_falls());
  Saves saves(checkpoints, trainer, world, options, hooks);
  if (evaluator && options.eval_on_start && state.step == 0) emit(evaluator(0));

  while (state.step < options.max_steps && !is_patience_over(options.best, state.best)) {
    // The step: drawn, computed, applied.
    const auto start = Clock::now();
    const StepInfo step = parallel::run_on_all(world.all(), [&] { return lookahead.take(); });
    const bool may_skip = state.skipped_in_a_row < options.skip_nonfinite_steps;
    StepSums sums = compute_gradients(trainer, world, step.micro_batches, objective, may_skip);
    const double divisor = objective.divisor(sums);
    const roles::Trainer::Update update = update_or_skip(trainer, sums.loss, divisor, may_skip);
    state.step += 1;
    const bool tells = world.rank() == 0;
    if (update.overflowed)
      count_overflow(update.loss_scale.value(), tells, state);
    else
      count_skipped(update.skipped, options.skip_nonfinite_steps, tells, state);
    const bool goes_wrong =
        see_divergence(watch, state.step, sums.loss / divisor, update, result.divergence);
    if (goes_wrong && tells && hooks.on_divergence)
      hooks.on_divergence(state.step, result.divergence);
    state.cursor = step.after;
    state.num_tokens += static_cast<int64_t>(sums.num_tokens);
    MetricsRow row = make_row(sums, divisor, update, state, step.epoch, seconds_since(start));
    if (step.data_wait_time) row.add("data_wait_time", *step.data_wait_time);
    if (update.loss_scale) row.add("loss_scale", *update.loss_scale);
    if (options.skip_nonfinite_steps > 0 || update.loss_scale)
      row.add("skipped_steps", state.skipped_steps);
    objective.finish_step(sums, row);

    // What is told of the step, and evaluated after it.
    const bool done = state.step == options.max_steps;
    if (state.step % options.logging_steps == 0 || done) {
      if (options.log_layer_grad_norms)
        for (const auto& [part, norm] : trainer.layer_grad_norms())
          row.add("grad_norm/" + part, norm);
      if (hooks.add_metrics) hooks.add_metrics(row);
      emit(row);
    }
    bool is_best = false;
    if (evaluator && (done || is_due(state.step, options.eval_steps))) {
      const MetricsRow evaluation = evaluator(state.step);
      emit(evaluation);
      is_best = see_on_all(world.all(), options.best, evaluation, state.best);
    }
    const bool gives_up = is_patience_over(options.best, state.best);
    if (hooks.on_step) hooks.on_step(state.step);

    // All ranks save and stop after the same step, and finish a checkpoint once nobody writes. The
    // losses of ranks that share a layer may differ in their last bit, and so may what they find.
    const AnyRank any =
        ask_all(world.all(), {.stop_asked = hooks.stop_requested && hooks.stop_requested(),
                              .still_writing = checkpoints.busy(),
                              .diverged = options.stop_if_diverged && !result.divergence.empty()});
    if (!any.stop_asked && !any.still_writing) saves.finish(state.step);
    if (any.diverged && result.divergence.empty())
      result.divergence = "another rank found that the run has diverged";
    const bool ends = any.stop_asked || any.diverged || is_due(state.step, options.exit_interval);
    if (ends || done || gives_up || is_best || is_due(state.step, options.save_steps)) {
      if (hooks.complete_state) hooks.complete_state(state);
      if (hooks.on_save) hooks.on_save(state.step);
      saves.save(state, ends || done || gives_up, result.last_checkpoint);
      if (hooks.on_saved) hooks.on_saved(state.step);
    }
    if (ends && !done && !gives_up) {
      result.stopped_early = true;
      result.stopped_by_divergence = any.diverged && !any.stop_asked;
      break;
    }
  }

  checkpoints.finish(world);
  result.step = state.step;
  if (!result.stopped_early && state.step < options.max_steps)
    result.ended_early = why_stopped_early(state.best);
  if (!result.stopped_early && world.rank() == 0) link_final(checkpoints.run_folder(), state.step);
  return result;
}

}  // namespace retort::recipes
