// Generators and those who ask them over a simulated network: see generator_simulation.h for what
// must be true, and docs/developing.md for which mistakes it was seen to find.
//
// RETORT_SEEDS: how many; RETORT_SEED: this one alone, as the message of a failure says.
#include "tests/roles/simulation/generator_simulation.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace retort::roles::simulation {
namespace {

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::stoull(text) : otherwise;
}

struct Result {
  std::string failure;
  uint64_t fingerprint = 0;
};

Result run(uint64_t seed) {
  auto simulation = std::make_unique<GeneratorSimulation>(seed);
  Result result{simulation->run(), 0};
  result.fingerprint = simulation->fingerprint();
  // One that failed has threads in the middle of things: it is left as it is.
  if (!result.failure.empty()) (void)simulation.release();
  return result;
}

TEST(GeneratorSimulation, EverySeedIsClean) {
  const uint64_t only = number("RETORT_SEED", 0);
  const uint64_t first = only > 0 ? only : number("RETORT_FIRST_SEED", 1);
  const uint64_t seeds = only > 0 ? 1 : number("RETORT_SEEDS", 2000);
  for (uint64_t seed = first; seed < first + seeds; ++seed)
    ASSERT_EQ(run(seed).failure, "") << "RETORT_SEED=" << seed;
}

// Without it a seed would not tell anybody anything.
TEST(GeneratorSimulation, ASeedIsTheSameRunEachTime) {
  for (uint64_t seed = 1; seed <= 5; ++seed)
    EXPECT_EQ(run(seed).fingerprint, run(seed).fingerprint) << seed;
}

}  // namespace
}  // namespace retort::roles::simulation

int main(int argc, char** argv) {
  setenv("RETORT_LOG", "error", 0);
  ::testing::InitGoogleTest(&argc, argv);
  // A run that failed leaves its simulation behind.
  GTEST_FLAG_SET(fail_fast, true);
  // The engine's other threads would spin.
  at::set_num_threads(1);
  retort::roles::simulation::load_files();
  return RUN_ALL_TESTS();
}
