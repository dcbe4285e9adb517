// How far ahead of its step an on-policy batch is drawn, and its teachers are asked.
#pragma once

#include <algorithm>
#include <cstdint>

#include "recipes/document/recipe.h"

namespace retort::recipes {

// With max_staleness S a batch is drawn S steps before its own, with the weights of then, while the
// steps between are computed; from S = 2 on its teachers are asked a step before its own, so that
// they answer while that one is computed:
//
//   student    ... computes 7       computes 8       computes 9 ...
//   teacher    ... answers 8        answers 9        answers 10 ...
//   generator  ... draws 9          draws 10         draws 11 ...      S = 2
//
// Neither crosses a step that saves a checkpoint: a run that is resumed there draws with the
// weights of that checkpoint, and so does one that goes on.
struct DrawAhead {
  int64_t max_staleness = 0;
  // Steps after which a checkpoint is saved; 0: none. `best_steps`: where an evaluation may be the
  // best.
  int64_t save_steps = 0, exit_interval = 0, best_steps = 0;
  int64_t start_step = 0, max_steps = 0;  // of the run; max_steps 0: no end is known

  // The most steps by which a batch is drawn before `step`, its own.
  int64_t drawn(int64_t step) const { return std::min(max_staleness, room(step)); }
  // And by which its teachers are asked before it.
  int64_t asked(int64_t step) const {
    return std::min<int64_t>(max_staleness >= 2 ? 1 : 0, room(step));
  }

 private:
  int64_t room(int64_t step) const {
    int64_t last = start_step;
    for (const int64_t every : {save_steps, exit_interval, best_steps})
      if (every > 0) last = std::max(last, (step - 1) / every * every);
    return std::max<int64_t>(0, step - 1 - last);
  }
};

// That of a recipe's run of `max_steps` which begins behind `start_step`.
inline DrawAhead draw_ahead(const Recipe& recipe, int64_t start_step, int64_t max_steps) {
  const TrainOptions& train = recipe.train;
  return {.max_staleness = recipe.distill->max_staleness,
          .save_steps = train.save_steps,
          .exit_interval = train.exit_interval,
          .best_steps = train.metric_for_best_model ? train.eval_steps : 0,
          .start_step = start_step,
          .max_steps = max_steps};
}

}  // namespace retort::recipes
