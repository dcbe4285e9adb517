// Which of the samples of a round are kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recipes/document/rejection_sampling_options.h"

namespace retort::recipes {

// A sample that was scored, of any rank: what selection looks at.
struct Candidate {
  int64_t prompt = 0;  // number within the round
  double reward = 0;
  uint64_t sample_id = 0;
  std::string row_hash;    // equal for equal rows
  bool truncated = false;  // cut off, as a completion at max_new_tokens
};

// Indices into `candidates` of what is kept, by prompt, then by reward (best first; ties: lower
// sample id).
std::vector<size_t> select(const std::vector<Candidate>& candidates,
                           const RejectionSamplingOptions& options);

}  // namespace retort::recipes
