// Options that the blocks of all recipes have in common that ask a frozen model while they train.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace retort::recipes {

inline constexpr const char* kReferenceCacheHelp =
    "folder for the reference's log-probabilities, named by content; empty: the run's own cache";
inline constexpr const char* kReferencePrefetchHelp =
    "steps whose reference answers may be in flight";

// kInvalidArgument for less than the one step that is computed.
inline void check_prefetch(int64_t prefetch) {
  if (prefetch < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "prefetch must be at least 1, got " + std::to_string(prefetch));
}

}  // namespace retort::recipes
