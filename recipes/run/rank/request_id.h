// Ids of what a rank asks other roles for.
#pragma once

#include <cstdint>

namespace retort::recipes {

// Returns the id of the request for micro-batch `index` of the `count` that `step` has, on
// data-parallel rank `dp_rank` of `dp_size`: unique over steps, micro-batches and ranks, and the
// same in a resumed run.
inline uint64_t request_id(int64_t step, uint64_t index, uint64_t count, int64_t dp_rank,
                           int64_t dp_size) {
  const uint64_t batch = static_cast<uint64_t>(step) * count + index;
  return batch * static_cast<uint64_t>(dp_size) + static_cast<uint64_t>(dp_rank);
}

// The first of the ids that evaluations use, above all of steps.
inline constexpr uint64_t kFirstEvaluationRequest = uint64_t{1} << 63;

}  // namespace retort::recipes
