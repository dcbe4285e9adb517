// Trainers of two and four ranks on stand-in devices, whose collectives are seen when they were
// waited for and compared between the ranks, beside one in a single process on the CPU.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/losses/stand_in_device.h"
#include "tests/parallel/rank_process.h"
#include "tests/parallel/stand_in/backends.h"
#include "tests/roles/layout_training.h"

namespace retort::roles {
namespace {

using parallel::World;
using test::require;

constexpr int kProcesses = 4;

// All in one process a rank, so that what one process computes is computed once for each model.
void layouts_scenario() {
  const World::Options given = parallel::testing::child_world_options();
  testing::SingleRuns singles;
  for (const testing::LayoutCase& c : testing::device_layouts()) {
    if (given.rank >= c.layout.world_size()) continue;
    World::Options options = test::on_stand_in(given);
    options.store_prefix += testing::name_of(c) + "/";
    testing::compare_with_one_process(c, options, singles, parallel::Device::kCpu);
    const auto failure = test::stand_in_failure(options);
    require(!failure, testing::name_of(c) + ": " + failure.value_or(""));
    require(c.layout.tp * c.layout.dp == 1 || test::stand_in_collectives(options) > 0,
            testing::name_of(c) + " has collectives on the device");
  }
}

TEST(StandInLayouts, TrainLikeOneProcessOnTheCpu) {
  const parallel::StoreServer store("127.0.0.1");
  auto ranks = parallel::testing::spawn_ranks(
      store, {.scenario = "layouts", .layout = {.dp = kProcesses}}, kProcesses);
  parallel::testing::expect_success(std::move(ranks), std::chrono::seconds(240));
}

}  // namespace
}  // namespace retort::roles

int main(int argc, char** argv) {
  ::setenv("STAND_IN_DEVICES", "4", 1);  // also for the children
  retort::test::stand_in_device();
  return retort::parallel::testing::ranks_or_tests(argc, argv,
                                                   {{"layouts", retort::roles::layouts_scenario}});
}
