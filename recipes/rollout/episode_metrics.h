// What metrics say of the episodes of a round.
#pragma once

#include "parallel/group.h"
#include "recipes/rollout/rollout.h"
#include "recipes/run/metrics/metrics_writer.h"

namespace retort::recipes {

// Adds means over the episodes of all ranks of `dp`: of calls and failed ones in TRL's words, of
// turns, of the environment's tokens, and of each number that the environment reported, over those
// that reported it. Episodes that cannot be scored are counted, and in no mean.
//
// Collectives, on dp: two all-gathers; none in a group of one rank.
void add_episode_metrics(const Rollout& rollout, parallel::Group& dp, MetricsRow& row);

}  // namespace retort::recipes
