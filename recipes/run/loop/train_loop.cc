#include "recipes/run/loop/train_loop.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "parallel/vote.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"
#include "recipes/run/loop/divergence_watch.h"
#include "recipes/run/loop/optimizer_step.h"

namespace retort::recipes {

namespace {

double step_seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

// True after every `every`-th step; never where `every` is 0.
bool is_due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

// Sets `divergence` to what is wrong with the run after a step; returns true if it was well before.
// A gradient that was too large for its loss scale says nothing of the run.
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

// Holds the steps that are drawn but not yet computed, oldest first, so that an objective can ask
// other roles about them ahead of time.
class Lookahead {
 public:
  Lookahead(Objective& objective, int64_t next_step, int64_t max_steps)
      : objective_(objective), next_(next_step), max_(max_steps) {}

  StepInfo take() {
    while (next_ < max_ && static_cast<int64_t>(queue_.size()) <= objective_.lookahead(next_ + 1)) {
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

// These flags hold on this rank; once agreed, on any of them.
struct AnyRank {
  bool stop_asked = false;
  bool still_writing = false;
  bool diverged = false;
};

// Saving and stopping make collectives, so no rank may do either alone. One all-reduce a step.
AnyRank ask_all(parallel::Group& all, const AnyRank& mine) {
  at::Tensor flags = at::tensor(
      {int64_t{mine.stop_asked}, int64_t{mine.still_writing}, int64_t{mine.diverged}}, at::kLong);
  if (all.size() > 1) all.all_reduce(flags, parallel::ReduceOp::kMax);
  const int64_t* flag = flags.const_data_ptr<int64_t>();
  return {.stop_asked = flag[0] != 0, .still_writing = flag[1] != 0, .diverged = flag[2] != 0};
}

// The first rank's evaluation decides for all, because a recipe that samples does not have its sums
// on every rank. The others add 0 to its number.
bool see_on_all(parallel::Group& all, const BestModelOptions& options, const MetricsRow& row,
                BestModel& best) {
  if (options.metric.empty()) return false;
  const double mine = parallel::run_on_all(
      all, [&] { return all.rank() == 0 ? metric_of(row, options.metric) : 0.0; });
  return see_evaluation(options, row.step, all.all_reduce(mine), best);
}

// Saves the checkpoints of a run that may go on without one of them.
class Saves {
 public:
  Saves(CheckpointStore& store, const roles::Trainer& trainer, parallel::World& world,
        const TrainLoopOptions& options, const TrainLoopHooks& hooks)
      : store_(store), trainer_(trainer), world_(world), options_(options), hooks_(hooks) {}

  // Both do what the same functions of the store do, but may only tell of a failure. The last
  // checkpoint is what a run ends with: it cannot do without that one.
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
      // The store has voted, so that all ranks have this error and decide alike.
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

// A run of the loop. Its state is that of the last step that is done.
class TrainLoop {
 public:
  TrainLoop(const TrainLoopParts& parts, LoopState start, const TrainLoopOptions& options,
            const TrainLoopHooks& hooks)
      : parts_(parts),
        options_(options),
        hooks_(hooks),
        all_(parts.world.all()),
        state_(std::move(start)),
        lookahead_(parts.objective, state_.step, options.max_steps),
        watch_(parts.objective.loss_falls()),
        saves_(parts.checkpoints, parts.trainer, parts.world, options, hooks) {
    result_.step = state_.step;
  }

  TrainLoopResult run();

 private:
  bool tells() const { return all_.rank() == 0; }
  bool is_last() const { return state_.step == options_.max_steps; }
  // True if no evaluation has been the best for as long as the run waits for one.
  bool gives_up() const { return is_patience_over(options_.best, state_.best); }

  void emit(const MetricsRow& row) const {
    if (tells() && hooks_.on_metrics) hooks_.on_metrics(row);
  }

  MetricsRow take_step();
  void count_update(const roles::Trainer::Update& update);
  bool tell_and_evaluate(MetricsRow& row);
  bool save_or_end(bool is_best);
  void save(bool is_last_one);

  const TrainLoopParts& parts_;
  const TrainLoopOptions& options_;
  const TrainLoopHooks& hooks_;
  parallel::Group& all_;
  LoopState state_;
  TrainLoopResult result_;
  Lookahead lookahead_;
  DivergenceWatch watch_;
  Saves saves_;
};

// An overflow of the loss scale is counted apart, because the next step's smaller scale mends it.
void TrainLoop::count_update(const roles::Trainer::Update& update) {
  if (update.overflowed)
    count_overflow(update.loss_scale.value(), tells(), state_);
  else
    count_skipped(update.skipped, options_.skip_nonfinite_steps, tells(), state_);
}

// Draws, computes and applies one step. Returns its row, without what only logged rows have.
MetricsRow TrainLoop::take_step() {
  const auto start = std::chrono::steady_clock::now();
  Objective& objective = parts_.objective;
  // Drawing reads data and asks other roles, which may fail on one rank alone.
  const StepInfo step = parallel::run_on_all(all_, [&] { return lookahead_.take(); });
  const bool may_skip = state_.skipped_in_a_row < options_.skip_nonfinite_steps;
  StepSums sums =
      compute_gradients(parts_.trainer, parts_.world, step.micro_batches, objective, may_skip);
  const double divisor = objective.divisor(sums);
  const roles::Trainer::Update update =
      update_or_skip(parts_.trainer, sums.loss, divisor, may_skip);
  state_.step += 1;
  count_update(update);

  const bool goes_wrong =
      see_divergence(watch_, state_.step, sums.loss / divisor, update, result_.divergence);
  if (goes_wrong && tells() && hooks_.on_divergence)
    hooks_.on_divergence(state_.step, result_.divergence);

  // The cursor is the one behind this step, not behind those that are drawn ahead: a run that is
  // resumed here draws these again.
  state_.cursor = step.after;
  state_.num_tokens += static_cast<int64_t>(sums.num_tokens);
  MetricsRow row = make_row(sums, divisor, update, state_, step.epoch, step_seconds(start));
  if (step.data_wait_time) row.add("data_wait_time", *step.data_wait_time);
  if (update.loss_scale) row.add("loss_scale", *update.loss_scale);
  if (options_.skip_nonfinite_steps > 0 || update.loss_scale)
    row.add("skipped_steps", state_.skipped_steps);
  objective.finish_step(sums, row);
  return row;
}

// Tells of the step, and evaluates after it. Returns whether the evaluation is the best so far.
// Every rank adds metrics, because some are sums over all ranks; the first one writes them.
bool TrainLoop::tell_and_evaluate(MetricsRow& row) {
  if (state_.step % options_.logging_steps == 0 || is_last()) {
    if (options_.log_layer_grad_norms)
      for (const auto& [part, norm] : parts_.trainer.layer_grad_norms())
        row.add("grad_norm/" + part, norm);
    if (hooks_.add_metrics) hooks_.add_metrics(row);
    emit(row);
  }

  const bool evaluates = is_last() || is_due(state_.step, options_.eval_steps);
  if (!parts_.evaluator || !evaluates) return false;
  const MetricsRow evaluation = parts_.evaluator(state_.step);
  emit(evaluation);
  return see_on_all(all_, options_.best, evaluation, state_.best);
}

void TrainLoop::save(bool is_last_one) {
  // These two may refuse: no checkpoint is written before all ranks are known to read the same
  // rows, nor of replicas that differ.
  if (hooks_.complete_state) hooks_.complete_state(state_);
  if (hooks_.on_save) hooks_.on_save(state_.step);
  saves_.save(state_, is_last_one, result_.last_checkpoint);
  if (hooks_.on_saved) hooks_.on_saved(state_.step);
}

// Returns whether the run stops here, before its last step. All ranks save and stop after the same
// step, and finish a checkpoint once nobody writes. The losses of ranks that share a layer may
// differ in their last bit, and so may what their watches find: that is agreed upon, too.
bool TrainLoop::save_or_end(bool is_best) {
  const AnyRank any =
      ask_all(all_, {.stop_asked = hooks_.stop_requested && hooks_.stop_requested(),
                     .still_writing = parts_.checkpoints.busy(),
                     .diverged = options_.stop_if_diverged && !result_.divergence.empty()});
  if (!any.stop_asked && !any.still_writing) saves_.finish(state_.step);
  if (any.diverged && result_.divergence.empty())
    result_.divergence = "another rank found that the run has diverged";

  const bool is_over = is_last() || gives_up();
  const bool ends = any.stop_asked || any.diverged || is_due(state_.step, options_.exit_interval);
  if (ends || is_over || is_best || is_due(state_.step, options_.save_steps)) save(ends || is_over);
  if (!ends || is_over) return false;
  result_.stopped_early = true;
  result_.stopped_by_divergence = any.diverged && !any.stop_asked;
  return true;
}

TrainLoopResult TrainLoop::run() {
  check_same_metric(options_.best, state_.best);
  if (parts_.evaluator && options_.eval_on_start && state_.step == 0) emit(parts_.evaluator(0));

  while (state_.step < options_.max_steps && !gives_up()) {
    MetricsRow row = take_step();
    const bool is_best = tell_and_evaluate(row);
    if (hooks_.on_step) hooks_.on_step(state_.step);
    if (save_or_end(is_best)) break;
  }

  // A run that came to its end is known by its last checkpoint, so that one must be complete before
  // `final` points to it.
  parts_.checkpoints.finish(parts_.world);
  result_.step = state_.step;
  if (!result_.stopped_early && state_.step < options_.max_steps)
    result_.ended_early = why_stopped_early(state_.best);
  if (!result_.stopped_early && tells()) link_final(parts_.checkpoints.run_folder(), state_.step);
  return result_;
}

}  // namespace

TrainLoopResult run_train_loop(const TrainLoopParts& parts, LoopState start,
                               const TrainLoopOptions& options, const TrainLoopHooks& hooks) {
  return TrainLoop(parts, std::move(start), options, hooks).run();
}

}  // namespace retort::recipes
