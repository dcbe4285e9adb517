// The counterparts of aot and aot_unpaired, over the pairs of all data-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/group.h"

namespace retort::recipes {

// Of this rank's P pairs among those of all ranks of `group`, whichever rank has which pair:
// [3, P] (losses/counterparts.h). `sums`: [4, P] float32 in host memory, the log-probabilities of
// the policy's chosen and rejected completions and of the reference's. P may differ between ranks.
// Collectives: two all-reduces on `group`, 8 bytes a rank and 16 bytes a pair.
at::Tensor counterparts_over(parallel::Group& group, const at::Tensor& sums);

}  // namespace retort::recipes
