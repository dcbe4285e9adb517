// What teaches the student of a run: connections to its teachers, and the objective that compares
// with them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/distill/draw_ahead.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/metrics/metrics_writer.h"
#include "recipes/run/rank/recipe_run.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

struct Teaching {
  // What an evaluation asks the teachers: adds eval_kd_loss to the row. Every rank calls.
  using Evaluate = std::function<void(const roles::Trainer& student,
                                      const std::vector<data::MicroBatch>& batches,
                                      parallel::World& world, MetricsRow& row)>;

  std::unique_ptr<BatchObjective> objective;
  // By the same one, which must live; empty where an evaluation asks no teacher.
  Evaluate evaluate;
};

// Connects where the loss is formed, and opens the caches that take a teacher's place.
// `cached_rows`: the training rows, which must be in them; null where no teacher may be a cache.
// `draws`: how far ahead on-policy batches come.
// Errors: connect_frozen_role's, CachedTeacher's. Every rank calls.
Teaching make_teaching(RunContext& context, StepSource source, const data::Dataset* cached_rows,
                       const DrawAhead& draws = {});

}  // namespace retort::recipes
