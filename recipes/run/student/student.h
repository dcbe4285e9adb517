// The driving role: what a rank of the student does from its start to its end.
#pragma once

#include "recipes/run/loop/train_loop.h"
#include "recipes/run/rank/rank_context.h"

namespace retort::recipes {

// World, model, data, the other roles, and the training loop. Returns how the loop ended.
TrainLoopResult run_student(const RankContext& context);

}  // namespace retort::recipes
