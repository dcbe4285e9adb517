// Answers that cannot be, whoever made them.
#pragma once

#include <cstdint>

#include "engines/contract/engine.h"

namespace retort::engines {

// `ids`: token ids lie below it. kCorrupt naming the field: counts, ids, numbers that are none or
// above 0, an end that the tokens do not show. No log-probabilities at all are none, not an error.
void check_answer(const DrawRequest& request, const Drawn& answer, int64_t ids);
// The same, and shapes, dtypes, order; ids of a row that are not distinct; more mass than 1.
void check_answer(const ScoreRequest& request, const Scored& answer, int64_t ids);

}  // namespace retort::engines
