// Ranks that share one device and have NCCL between them all the same: its real code, streams and
// aborts, without a second device. Their kernels take turns, so it is slow. NVIDIA does not promise
// that it works.
#pragma once

#include "parallel/world.h"

namespace retort::gpu_testing {

// In a child, before NCCL is used: has it take this rank for a host of its own, reached through
// sockets, and returns the options of a world on the first device. Its rank and store are those of
// parallel::testing::child_world_options().
parallel::World::Options sharing_world_options();

}  // namespace retort::gpu_testing
