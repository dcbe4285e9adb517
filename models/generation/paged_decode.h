// Attention of sequences that have one query each, over the blocks in which a cache has their keys,
// by kernels/paged_decode.cuh. Private to models/.
//
// Nothing is gathered: a block of threads reads the keys of one piece of a sequence where they lie,
// for all query heads of one kv head, and a second launch joins the pieces. Bits of a sequence
// depend on its own keys and on the size of the pieces, which depends on how many sequences there
// are and on the longest of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace retort::models {

// Of one layer.
struct PagedCache {
  at::Tensor keys, values;  // [blocks * block_tokens, kv_heads, head_dim], contiguous
  int64_t block_tokens = 0;
};

struct PagedSequences {
  int64_t longest = 0;  // tokens of the longest, the one that asks among them
  at::Tensor tables;    // [B, blocks of the longest] int32: the blocks of each
  at::Tensor lengths;   // [B] int32: tokens of each, the one that asks among them
};

struct DecodeScores {
  double scale = 1;
  double softcap = 0;  // c > 0: scaled scores x become c tanh(x / c)
  int64_t window = 0;  // tokens that a query sees, its own included; 0: all
};

// Whether there are kernels for such keys: on a device that has kernels, of bf16 or float32, heads
// of 64, 128 or 256.
bool decode_has_kernels(const at::Tensor& keys);
// The most sequences that one call takes, which a grid of blocks limits.
int64_t max_decoded_sequences(const at::Tensor& keys, int64_t heads);

// Writes to y. q and y are [B, heads, head_dim], contiguous, in the dtype of the keys. It is two
// launches.
// Memory: 4 * (head_dim + 2) bytes for each piece of 64 to 256 keys and each of its heads.
void paged_decode(const at::Tensor& q, const PagedCache& cache, const PagedSequences& sequences,
                  const DecodeScores& scores, at::Tensor y);

}  // namespace retort::models
