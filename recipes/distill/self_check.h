// `retort check` of distillation: each teacher's divergence in value, direction, gradient and
// temperature.
#pragma once

#include "recipes/type/self_check.h"

namespace retort::recipes {

// The first row of the run; all models in fp32 on the CPU.
void check_distill_numbers(SelfCheck& check, const Recipe& recipe);

}  // namespace retort::recipes
