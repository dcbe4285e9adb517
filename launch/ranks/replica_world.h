// The world of one replica of a serving role.
#pragma once

#include <memory>

#include "parallel/world.h"
#include "recipes/run/rank_context.h"

namespace retort::launch {

// The ranks that hold one model together: dp 1, ranks from 0. Replicas share no group, so that one
// that is lost takes no other along. Null where a replica is one rank on the CPU.
std::unique_ptr<parallel::World> make_replica_world(const recipes::RankContext& context);

// Of the first rank of this rank's replica, which speaks for it: "teacher/2".
std::string replica_leader(const recipes::RankContext& context);

}  // namespace retort::launch
