// Production agents over a simulated network: see agent_simulation.h for what must be true, and
// docs/developing.md for which mistakes it was seen to find. Seeds: seeds.h.
#include <gtest/gtest.h>

#include "tests/rpc/simulation/agent_simulation.h"
#include "tests/rpc/simulation/seeds.h"

namespace retort::rpc::simulation {
namespace {

TEST(AgentSimulation, EverySeedIsClean) { expect_clean_seeds<AgentSimulation>(1000); }

TEST(AgentSimulation, ASeedIsTheSameRunEachTime) { expect_the_same_runs<AgentSimulation>(20); }

}  // namespace
}  // namespace retort::rpc::simulation

int main(int argc, char** argv) {
  retort::rpc::simulation::init_simulations(&argc, argv);
  return RUN_ALL_TESTS();
}
