// Log-probabilities of tokens that are given.
#pragma once

#include <cstdint>
#include <vector>

#include "models/decoder/decoder.h"

namespace retort::models {

struct ScoreRequest {
  std::vector<std::vector<int32_t>> sequences;  // prompt and completion
  // of each; at least 1, at most the sequence's length
  std::vector<int64_t> prompt_lengths;
};

struct ScoreOptions {
  // sequences are packed up to this; a longer one is computed alone
  int64_t max_tokens_per_forward = 4096;
  int64_t vocab_chunk = 8192;  // logits formed at once for each row
  int64_t row_chunk = 256;
};

// For each sequence the fp32 log-probabilities of the tokens after its prompt, each given what
// stands before it: temperature 1, whole vocabulary. Without autograd.
// Memory: Decoder::hidden in packs, then the head in pieces of row_chunk x vocab_chunk; no
// [tokens, V] matrix.
// Errors: kInvalidArgument naming the sequence that is empty, has ids outside the vocabulary or a
// prompt length that does not fit. kUnavailable when the model is not on the CPU.
// Collectives: on the decoder's tp group, those of its forward, and for each row_chunk one
// all-gather of three fp64 numbers a row. Every rank must call alike, and gets the same numbers.
// Threads: compute.
std::vector<std::vector<float>> score(const Decoder& decoder, const ScoreRequest& request,
                                      const ScoreOptions& options = {});

}  // namespace retort::models
