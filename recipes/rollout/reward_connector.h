// How the rewards of a run reach the roles that compute them.
#pragma once

#include "recipes/rewards/reward.h"
#include "recipes/run/recipe_run.h"

namespace retort::recipes {

// Connects to the role of an entry when it is called, on the rank that scores; what that returns
// asks the role with the ids of prompt and completion. `context` must outlive both.
rewards::ConnectRoles reward_connector(RunContext& context);

}  // namespace retort::recipes
