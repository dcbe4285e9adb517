// A run's connection to its generators.
#pragma once

#include <memory>

#include "recipes/rollout/sample_source.h"
#include "recipes/run/rank/recipe_run.h"

namespace retort::recipes {

// Connects to the role that generation.role names, where this rank speaks to it. Every rank calls.
std::shared_ptr<SampleSource> make_rollout_worker(RunContext& context,
                                                  const roles::Trainer& trainer);

}  // namespace retort::recipes
