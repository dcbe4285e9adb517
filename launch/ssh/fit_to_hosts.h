// The recipe of a run that goes on with the hosts that are left.
#pragma once

#include "launch/placement/placement.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// The recipe itself where the hosts that are left have room for it. Else with the largest student
// dp for which they have, from launch.min_dp on, and as many more micro-batches a step: each
// optimizer step sees the rows that it would have seen, so dp must divide them.
// kUnavailable, with what would have helped, when nothing fits.
recipes::Recipe fit_to_hosts(const recipes::Recipe& recipe, const LostHosts& lost);

// Refuses a launch.min_dp that no run could go on with: kInvalidArgument.
void check_min_dp(const recipes::Recipe& recipe);

}  // namespace retort::launch
