// The world of one replica of a serving role.
#pragma once

#include <memory>

#include "models/decoder.h"
#include "parallel/world.h"
#include "recipes/run/rank_context.h"

namespace retort::launch {

// The ranks that hold one model together: dp 1, ranks from 0. Replicas share no group, so that one
// that is lost takes no other along. Null where a replica is one rank on the CPU.
std::unique_ptr<parallel::World> make_replica_world(const recipes::RankContext& context);

// This rank's part of the role's model, on `device`; reports that it is loading. `world`: of the
// replica; null where this rank holds all of it.
models::Decoder load_role_model(const recipes::RankContext& context, parallel::World* world,
                                at::Device device);

// Of the first rank of this rank's replica, which speaks for it: "teacher/2".
std::string replica_leader(const recipes::RankContext& context);

}  // namespace retort::launch
