// The form in which every model sees tokens: one flat row of sequences laid end to end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace retort::models {

// Where a sequence forks into branches. Branch i is its tokens [begins[i], begins[i + 1]), the last
// one ends with the sequence. A branch continues the sequence's first `prefix` tokens, not those
// between: it sees the prefix and itself, and its positions go on from `prefix`. What stands before
// the first branch, the prefix among it, is an ordinary sequence.
struct Fork {
  int64_t prefix = 0;
  std::vector<int64_t> begins;  // not decreasing, the first at or after `prefix`; empty: no branch
};

// What is added to the embeddings of tokens that a model is trained on (embedding_noise.cc): noise
// that follows from each sequence's key.
struct EmbeddingNoise {
  double alpha = 0;            // 0: none
  std::vector<uint64_t> keys;  // one for each sequence
};

// N tokens of S sequences. Attention is block-diagonal over [cu_seqlens[s], cu_seqlens[s+1]) and
// causal inside a block. A sequence with a fork holds several continuations of one beginning, which
// is computed once; none of them sees another.
struct PackedTokens {
  at::Tensor input_ids;             // [N] int64
  at::Tensor positions;             // [N] int64, restart at 0 in every sequence
  std::vector<int64_t> cu_seqlens;  // S+1 offsets, host memory, first 0, last N
  std::vector<Fork> forks;          // one for each sequence, or empty: none forks
  // [R] int64, maybe in host memory: the rows whose final hidden states are wanted, in this order,
  // a row maybe more than once; undefined: all. The last layer computes its MLP for no others.
  at::Tensor wanted;
  EmbeddingNoise noise;

  int64_t num_tokens() const { return cu_seqlens.empty() ? 0 : cu_seqlens.back(); }
  int64_t num_sequences() const {
    return cu_seqlens.empty() ? 0 : static_cast<int64_t>(cu_seqlens.size()) - 1;
  }
};

// Rows `positions` [R] int64 of `values` [N, ...]: [R, ...], with autograd. The positions may lie
// in host memory.
at::Tensor rows_at(const at::Tensor& values, const at::Tensor& positions);

// The same tokens with `rows` as the rows that are wanted.
PackedTokens wanting(PackedTokens tokens, at::Tensor rows);

// Packs rows of different lengths, in their order.
PackedTokens pack_rows(const std::vector<std::vector<int32_t>>& rows);

// kInvalidArgument naming what has another shape or type than above, or an id in host memory that
// lies outside the vocabulary.
void check_packed_tokens(const PackedTokens& tokens, int64_t vocab_size);

}  // namespace retort::models
