// Noise on the embeddings of a step's samples: train.neftune_noise_alpha.
#pragma once

#include <cstdint>

#include "recipes/run/batch_objective.h"

namespace retort::recipes {

// The steps of `source`, whose tokens have noise of this alpha in training's forward passes
// (models::EmbeddingNoise): of each sample another in every step, but the same for every layout,
// packing and number of micro-batches, and in a resumed run. alpha 0: `source` itself.
StepSource with_embedding_noise(StepSource source, double alpha, uint64_t seed);

}  // namespace retort::recipes
