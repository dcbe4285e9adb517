// `retort check` of distillation: each teacher's divergence in value, direction, gradient and
// temperature.
#pragma once

#include "models/loaded_model.h"
#include "recipes/data/batches.h"
#include "recipes/sft/self_check.h"
#include "recipes/type/self_check.h"

namespace retort::recipes {

// The first row of the run; all models in fp32 on the CPU.
void check_distill_numbers(SelfCheck& check, const Recipe& recipe);

// The same of a teacher with another tokenizer (cross_self_check.cc): says how the first row's
// tokens stand for the same bytes on both sides, and compares the loss of its first groups with one
// that is written down a second time in float64.
void check_other_tokenizer(SelfCheck& check, const Recipe& recipe, const data::MicroBatch& batch,
                           const CheckedRows& student, const models::LoadedModel& teacher);

}  // namespace retort::recipes
