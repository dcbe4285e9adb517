// Two ranks of which one gets no gradient of a parameter: what several tests of buckets run.
#pragma once

#include <cstdint>
#include <functional>

#include "parallel/world.h"

namespace retort::parallel::testing {

// In a child, in a world of dp 2 on the CPU or a device. Throws where a sum is wrong; where a rank
// waits for the other one in backward, after the timeout of the world.
// `started`: how many collectives this process has started on its device, which tells when buckets
// are sent; empty where nothing counts them.
void train_with_missing_gradients(World& world, const std::function<int64_t()>& started = {});

}  // namespace retort::parallel::testing
