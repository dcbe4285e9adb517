// The divergences written down a second time, in fp64 and without any optimisation: what `retort
// check` compares with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "recipes/losses/divergence.h"

namespace retort::recipes {

// D(q, p) of one row, from both sides' logits over the common vocabulary (Formulas in
// docs/losses.md). top_k 0: full vocabulary; otherwise the teacher's top_k ids and options.tail.
double reference_divergence(const std::vector<double>& teacher_logits,
                            const std::vector<double>& student_logits,
                            const losses::DivergenceOptions& options, int64_t top_k);
// With these ids, each once, instead of the teacher's.
double reference_divergence(const std::vector<double>& teacher_logits,
                            const std::vector<double>& student_logits,
                            const losses::DivergenceOptions& options,
                            const std::vector<size_t>& ids);

}  // namespace retort::recipes
