// Generators and those who ask them over a simulated network: see generator_simulation.h for what
// must be true, and docs/developing.md for which mistakes it was seen to find. Seeds: seeds.h.
#include "tests/roles/simulation/generator_simulation.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/rpc/simulation/seeds.h"

namespace retort::roles::simulation {
namespace {

using rpc::simulation::expect_clean_seeds;
using rpc::simulation::expect_the_same_runs;

TEST(GeneratorSimulation, EverySeedIsClean) { expect_clean_seeds<GeneratorSimulation>(2000); }

TEST(GeneratorSimulation, ASeedIsTheSameRunEachTime) {
  expect_the_same_runs<GeneratorSimulation>(5);
}

}  // namespace
}  // namespace retort::roles::simulation

int main(int argc, char** argv) {
  retort::rpc::simulation::init_simulations(&argc, argv);
  // The engine's other threads would spin.
  at::set_num_threads(1);
  retort::roles::simulation::load_files();
  return RUN_ALL_TESTS();
}
