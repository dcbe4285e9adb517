// A round of episodes that teaches nothing.
#pragma once

#include <cstdint>
#include <string>

#include "recipes/rollout/rollout.h"

namespace retort::recipes {

// Throws kUnavailable: not one of the `episodes` of a round, those of all ranks, `can` ("can be
// scored"), which is what every round comes to whose environment is broken. Quotes why the first
// episode of this rank was lost, whose record was read; every rank of the run throws with its own.
[[noreturn]] void refuse_lost_round(const Rollout& rollout, int64_t episodes,
                                    const std::string& can);

}  // namespace retort::recipes
