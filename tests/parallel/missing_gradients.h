// Two ranks of which one gets no gradient of a parameter: what several tests of buckets run.
#pragma once

#include "parallel/world.h"

namespace retort::parallel::testing {

// In a child, in a world of dp 2 on the CPU or a device. Throws where a sum is wrong; where a rank
// waits for the other one in backward, after the timeout of the world.
void train_with_missing_gradients(World& world);

}  // namespace retort::parallel::testing
