// The form in which every model sees tokens: one flat row of sequences laid end to end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace retort::models {

// Where a sequence forks: its tokens [begin, length) continue its first `prefix` tokens, not the
// tokens between. They see the prefix and one another, and their positions go on from `prefix`.
// begin 0: the sequence does not fork.
struct Fork {
  int64_t prefix = 0;
  int64_t begin = 0;
};

// N tokens of S sequences. Attention is block-diagonal over [cu_seqlens[s], cu_seqlens[s+1]) and
// causal inside a block. A sequence with a fork holds two continuations of one beginning, which is
// computed once; neither continuation sees the other.
struct PackedTokens {
  at::Tensor input_ids;             // [N] int64
  at::Tensor positions;             // [N] int64, restart at 0 in every sequence
  std::vector<int64_t> cu_seqlens;  // S+1 offsets, host memory, first 0, last N
  std::vector<Fork> forks;          // one for each sequence, or empty: none forks

  int64_t num_tokens() const { return cu_seqlens.empty() ? 0 : cu_seqlens.back(); }
  int64_t num_sequences() const {
    return cu_seqlens.empty() ? 0 : static_cast<int64_t>(cu_seqlens.size()) - 1;
  }
};

// Rows `positions` [R] int64 of `values` [N, ...]: [R, ...], with autograd. The positions may lie
// in host memory.
at::Tensor rows_at(const at::Tensor& values, const at::Tensor& positions);

// From rows of different lengths, in their order.
PackedTokens pack_rows(const std::vector<std::vector<int32_t>>& rows);

}  // namespace retort::models
