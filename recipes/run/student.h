// The driving role: what a rank of the student does from its start to its end.
#pragma once

#include "recipes/run/rank_context.h"
#include "recipes/run/train_loop.h"

namespace retort::recipes {

// World, model, data, the other roles, and the training loop. Returns how the loop ended.
TrainLoopResult run_student(const RankContext& context);

}  // namespace retort::recipes
