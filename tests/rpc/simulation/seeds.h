// What a test of a simulation does with its seeds.
//
// RETORT_SEEDS: how many; RETORT_FIRST_SEED: from which on; RETORT_SEED: this one alone, as the
// message of a failure says.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

namespace retort::rpc::simulation {

struct SeedResult {
  std::string failure;  // empty: none
  uint64_t fingerprint = 0;
};

template <class Simulation>
SeedResult run_seed(uint64_t seed) {
  auto simulation = std::make_unique<Simulation>(seed);
  SeedResult result{simulation->run(), 0};
  result.fingerprint = simulation->fingerprint();
  // One that failed has threads in the middle of things: it is left as it is.
  if (!result.failure.empty()) (void)simulation.release();
  return result;
}

inline uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::stoull(text) : otherwise;
}

template <class Simulation>
void expect_clean_seeds(uint64_t by_default) {
  const uint64_t only = number_from("RETORT_SEED", 0);
  const uint64_t first = only > 0 ? only : number_from("RETORT_FIRST_SEED", 1);
  const uint64_t seeds = only > 0 ? 1 : number_from("RETORT_SEEDS", by_default);
  for (uint64_t seed = first; seed < first + seeds; ++seed)
    ASSERT_EQ(run_seed<Simulation>(seed).failure, "") << "RETORT_SEED=" << seed;
}

// Without it a seed would not tell anybody anything.
template <class Simulation>
void expect_the_same_runs(uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    EXPECT_EQ(run_seed<Simulation>(seed).fingerprint, run_seed<Simulation>(seed).fingerprint)
        << seed;
}

inline void init_simulations(int* argc, char** argv) {
  setenv("RETORT_LOG", "error", 0);
  ::testing::InitGoogleTest(argc, argv);
  // A run that failed leaves its simulation behind.
  GTEST_FLAG_SET(fail_fast, true);
}

}  // namespace retort::rpc::simulation
