// `retort check` of preference pairs.
#pragma once

#include <memory>

#include "recipes/data/pair_batches.h"
#include "recipes/type/self_check.h"

namespace retort::recipes {

// The first pair of the run whose completions differ, of 100; checks that there is one.
data::PairMicroBatch first_pair(SelfCheck& check, const Recipe& recipe,
                                std::shared_ptr<const data::PreferenceDataset> dataset);

// The first pair whose completions differ: log-probabilities with and without a shared prompt, the
// loss at equal models, and the direction of its gradient; then the reference's vocabulary.
void check_dpo_numbers(SelfCheck& check, const Recipe& recipe);

}  // namespace retort::recipes
