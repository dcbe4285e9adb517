// The scenarios of parallel_sharded_test, in several files.
#pragma once

#include "tests/parallel/rank_process.h"

namespace retort::parallel::testing {

void late_buckets_scenario();
void missing_gradients_scenario();
void sharded_optimizer_scenario();

}  // namespace retort::parallel::testing
