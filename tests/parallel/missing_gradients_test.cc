// One rank of two gets no gradient of a parameter: nobody waits for it, and the sums are right.
#include "tests/parallel/missing_gradients.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/parallel/sharded_scenarios.h"

namespace retort::parallel::testing {

void missing_gradients_scenario() {
  World world(child_world_options());
  train_with_missing_gradients(world);
}

TEST(MissingGradients, KeepNobodyWaiting) {
  StoreServer store("127.0.0.1");
  expect_success(spawn_ranks(
      store,
      {.scenario = "missing_gradients", .layout = {.dp = 2}, .timeout = std::chrono::seconds(20)},
      2));
}

}  // namespace retort::parallel::testing
