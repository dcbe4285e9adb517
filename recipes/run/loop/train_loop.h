// The optimizer-step loop that every training recipe shares.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "recipes/run/checkpoints/best_model.h"
#include "recipes/run/checkpoints/checkpoint_store.h"
#include "recipes/run/loop/objective.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

struct TrainLoopOptions {
  int64_t max_steps = 0;
  int64_t logging_steps = 1;
  int64_t eval_steps = 0;     // 0: only at the end, if there are evaluation batches
  int64_t save_steps = 0;     // 0: only at the end
  int64_t exit_interval = 0;  // steps after which the run ends early, again and again; 0: never
  int64_t skip_nonfinite_steps = 0;  // in a row; 0: the first one is an error
  bool log_layer_grad_norms = false;
  bool eval_on_start = false;  // before the first step of a run
  bool stop_if_diverged = false;
  bool continue_on_save_error = false;
  BestModelOptions best;
};

// What the loop tells the program around it. Called on the compute thread.
struct TrainLoopHooks {
  std::function<bool()> stop_requested;  // every rank
  // Every rank, before a logged step's row is told: adds what neither the loop nor the objective
  // knows. May be a collective over the world.
  std::function<void(MetricsRow& row)> add_metrics;
  // rank 0: logged steps; evaluation rows have "eval_" names
  std::function<void(const MetricsRow& row)> on_metrics;
  // rank 0: what DivergenceWatch has found, once until it is over
  std::function<void(int64_t step, const std::string& what)> on_divergence;
  // rank 0: that a checkpoint could not be saved, and that the run goes on
  std::function<void(int64_t step, const std::string& what)> on_save_error;
  std::function<void(int64_t step)> on_step;  // every step done, every rank
  // Every rank, before a checkpoint is saved: adds to its state what was not known when the loop
  // began. May be a collective over the world.
  std::function<void(LoopState& state)> complete_state;
  // Every rank: before a checkpoint of this step is saved, and when training goes on after it.
  std::function<void(int64_t step)> on_save, on_saved;
};

struct TrainLoopResult {
  int64_t step = 0;
  bool stopped_early = false;  // a stop was requested, or exit_interval; a checkpoint was saved
  // what is wrong with the run as it ends (DivergenceWatch); "": nothing. Whether that ended it:
  // it is also stopped_early then.
  std::string divergence;
  bool stopped_by_divergence = false;
  // why the run has come to its end before max_steps (early stopping); "": it has not
  std::string ended_early;
  std::filesystem::path last_checkpoint;
};

// What the loop works on; all of it outlives the call.
struct TrainLoopParts {
  roles::Trainer& trainer;
  parallel::World& world;
  Objective& objective;
  Evaluator evaluator;  // empty: nothing is evaluated
  CheckpointStore& checkpoints;
};

// Runs from start.step to max_steps. Before the first collective of a
// step the ranks vote, so that a failure on one rank raises on all of them. A stop request on any
// rank stops all after the same step, with a checkpoint. A step whose loss or gradient is not
// finite is skipped on all ranks, or ends the run: TrainLoopOptions::skip_nonfinite_steps. One
// whose gradient in float16 is not, at a loss scale that can be lowered, is always skipped.
// With options.best an evaluation that is the best so far is followed by a checkpoint of its step,
// and one that uses up the patience by the end of the run, as max_steps is: with a checkpoint and
// `final`. A run whose start.best has used it up does no step.
// With options.stop_if_diverged a run that DivergenceWatch finds diverged or dead is stopped with a
// checkpoint, too; without, it is told and goes on.
// With options.continue_on_save_error a checkpoint that cannot be saved (is_save_error) is told,
// and the run goes on; but for the one that it ends with, which nothing follows.
// Collectives on the world: the trainer's, the objective's, and for each step two votes (three on a
// device), one all-reduce of the sums and one of the stop flag; those of CheckpointStore::save and
// finish: a checkpoint that is written meanwhile is finished after the step in which every rank has
// written.
TrainLoopResult run_train_loop(const TrainLoopParts& parts, LoopState start,
                               const TrainLoopOptions& options, const TrainLoopHooks& hooks);

}  // namespace retort::recipes
