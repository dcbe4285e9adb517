// The rows of a vocabulary that one rank of a tensor-parallel group holds.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel/group.h"

namespace retort::parallel {

// Rank r of n holds ids [r * rows, min((r + 1) * rows, total)), rows = ceil(total / n): the last
// ranks may hold fewer, or none. A vocabulary is never padded with rows that a softmax would have
// to leave out.
struct VocabShard {
  Group* group = nullptr;  // null or of one rank: this rank holds all of the vocabulary
  int64_t begin = 0;       // the first id that this rank holds
  // The number of ids of the whole vocabulary; 0 without a group: as many as the weight has rows.
  int64_t total = 0;

  bool whole() const { return group == nullptr || group->size() == 1; }
};

inline int64_t vocab_rows_per_rank(int64_t total, int64_t ranks) {
  return (total + ranks - 1) / ranks;
}
inline int64_t vocab_begin(int64_t total, int64_t ranks, int64_t rank) {
  return std::min(total, rank * vocab_rows_per_rank(total, ranks));
}
inline int64_t vocab_end(int64_t total, int64_t ranks, int64_t rank) {
  return vocab_begin(total, ranks, rank + 1);
}

}  // namespace retort::parallel
