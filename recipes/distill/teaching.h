// What teaches the student of a run: connections to its teachers, and the objective that compares
// with them.
#pragma once

#include <memory>

#include "recipes/data/dataset.h"
#include "recipes/distill/objective.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/rank/recipe_run.h"

namespace retort::recipes {

struct Teaching {
  std::unique_ptr<BatchObjective> objective;
  // The same one, where an evaluation asks the teachers for eval_kd_loss; else null.
  DistillObjective* evaluated = nullptr;
};

// Connects where the loss is formed, and opens the caches that take a teacher's place.
// `cached_rows`: the training rows, which must be in them; null where no teacher may be a cache.
// Errors: connect_frozen_role's, CachedTeacher's. Every rank calls.
Teaching make_teaching(RunContext& context, StepSource source, const data::Dataset* cached_rows);

}  // namespace retort::recipes
