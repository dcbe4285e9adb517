// Choosing one token from logits. Private to models/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "models/generation/request.h"

namespace retort::models {

// How often a completion has a token.
struct TokenCount {
  int32_t id = 0;
  int32_t count = 0;
};

// What a sequence has so far, as far as its options look at it.
struct DrawHistory {
  std::span<const int32_t> seen;          // ids that repetition_penalty applies to, each once
  std::span<const TokenCount> generated;  // for presence_penalty and frequency_penalty
  std::span<const int32_t> barred;        // ids that may not be drawn now, each once
};

struct Choice {
  int32_t token = 0;
  float logp = 0;           // at temperature 1, over the whole vocabulary, without penalty
  float sampling_logp = 0;  // of the distribution it was drawn from
};

// What is drawn from a row of logits alone, without a history and without a set of most probable
// tokens: as SampleRow of kernels/sample.cuh, to which it goes as it is.
struct RowDraw {
  uint64_t key = 0;  // of the noise
  double temperature = 1;
  float inverse_temperature = 1;
  float min_p = 0;
  int32_t row = 0;
  int32_t num_ids = 0;
};
static_assert(sizeof(RowDraw) == 32);

// Whether a RowDraw says all that the options do: their temperature, min_p, num_ids and seed.
bool needs_row_alone(const SamplingOptions& options);
RowDraw row_draw(const SamplingOptions& options, uint64_t sample, uint64_t position, int64_t row);

// What is thrown where logits are not finite.
Error not_finite(uint64_t sample, uint64_t position);

// Buffers that are kept between calls; one for each thread.
struct SamplerScratch {
  std::vector<float> scores, weights;
  std::vector<double> mass, distances;
  std::vector<int32_t> counts, ids;
};

// `logits` [vocab_size] fp32; all ids of `history` are below vocab_size, the barred ones below
// options.num_ids too, and leave at least one token. Greedy takes the first maximum. kCorrupt when
// the logits are not finite. Cost: a few passes over the vocabulary, no sort of it.
Choice choose_token(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                    const DrawHistory& history, uint64_t sample, uint64_t position,
                    SamplerScratch& scratch);

}  // namespace retort::models
