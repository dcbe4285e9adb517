// Noise on the embeddings of what is trained on (NEFTune, Jain et al., arXiv 2310.05914; as
// transformers 5 adds it, but for the length). Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/ops/packed.h"

namespace retort::models {

// Rows [first, first + rows) of the noise for `tokens`, [rows, width] float32 on the host: uniform
// in (-b, b) with b = alpha / sqrt(L width), L the length of the row's own sequence; 0 for rows
// behind the last token. A function of (key of the sequence, position in it, column) alone, so that
// every split of the rows and every packing gives the same. `tokens` must have a key for each
// sequence.
at::Tensor embedding_noise(const PackedTokens& tokens, int64_t first, int64_t rows, int64_t width);

}  // namespace retort::models
