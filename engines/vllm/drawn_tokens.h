// Whether what vLLM drew is what was asked for.
#pragma once

#include "engines/engine.h"
#include "engines/vllm/completion_reader.h"

namespace retort::engines::vllm {

// The end is decided as our engine does: an end token before a stop string before the length.
// kMismatch, naming the field: lists of different lengths, ids outside the vocabulary, an end that
//   was not asked for, or that came before max_new_tokens (vLLM cuts those to what its context or
//   the generation config leaves, without a word).
// kUnavailable: the server gave the request up.
Drawn checked_drawn(DrawnTokens tokens, const DrawRequest& request);

}  // namespace retort::engines::vllm
