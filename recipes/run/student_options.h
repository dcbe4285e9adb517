// What the parts of a student's process are made with: its recipe, as each of them wants it.
#pragma once

#include <cstdint>
#include <functional>

#include "base/units.h"
#include "recipes/recipe.h"
#include "recipes/run/checkpoint_store.h"
#include "recipes/run/train_loop.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// Optimizer steps of the whole run. `steps_per_epoch` may read all data, and is called only where
// the recipe counts in epochs.
int64_t total_steps(const TrainOptions& train, const std::function<int64_t()>& steps_per_epoch);

// `max_steps`: those of the whole run, which the learning rate follows.
roles::Trainer::Options trainer_options(const TrainOptions& train, int64_t max_steps);
TrainLoopOptions loop_options(const TrainOptions& train, int64_t max_steps);
CheckpointStore::Options checkpoint_options(const TrainOptions& train);

// How long a collective of the student may take: launch.collective_timeout, and at least as long as
// a rank may wait for another role. A rank that has its samples, or needs no answer of a teacher,
// waits in a collective for those that have not or do.
Duration student_timeout(const Recipe& recipe);

}  // namespace retort::recipes
