// The stand-in device as worlds use devices (parallel/detail/device_backends.h): what
// libretort_cuda.so is for CUDA, with collectives that are told in group.h.
//
//   const parallel::World::Options options = on_stand_in(child_world_options());
//   { parallel::World world(options); ... }
//   require(!stand_in_failure(options), "...");  // also what came out at the end of the world
//
// After a failure no group of these options does anything more: the next world needs others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "parallel/world.h"

namespace retort::test {

std::unique_ptr<parallel::detail::DeviceBackends> stand_in_backends();

// The options of a world whose ranks compute on the stand-in, a device each: STAND_IN_DEVICES has
// to name as many.
parallel::World::Options on_stand_in(parallel::World::Options options);

// The first failure of any group of worlds with these options, in this process.
std::optional<std::string> stand_in_failure(const parallel::World::Options& options);
// The names of the groups that are connected now.
std::set<std::string> stand_in_groups(const parallel::World::Options& options);
// The collectives that they have started in this process: code that should have had some did.
int64_t stand_in_collectives(const parallel::World::Options& options);

}  // namespace retort::test
