// The numbers that a sequence classifier (transformers' *ForSequenceClassification, as reward
// models are) gives whole sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "models/decoder/decoder.h"

namespace retort::models {

// Where transformers reads a sequence's numbers: its last token that is not `pad_token_id`, and
// with -1 its last; the first where all of them are padding. `ids` must not be empty.
int64_t score_position(std::span<const int32_t> ids, int64_t pad_token_id);

// [S, labels] float32 from the final hidden states [S, H] at the score_position of S sequences, in
// float32 whatever the model's dtype is.
//
// Gradient: by rows and weight. Where tensor-parallel ranks have copies of the head, the rows'
//   gradient is the first one's alone, as Decoder::hidden sums it over them.
// Collectives: none.
at::Tensor sequence_scores(const Head& head, const at::Tensor& rows);

}  // namespace retort::models
