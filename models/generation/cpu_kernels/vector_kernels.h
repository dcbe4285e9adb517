// The inner loops of generation, compiled for several vector widths; vector_kernels() chooses the
// table of functions for this processor. Private to models/. Everything is fp32 on one thread.
//
// Every function treats a row by itself, in an order that does not depend on how many rows there
// are: what a sequence computes does not depend on what else is in its batch, bit for bit.
#pragma once

#include <cstdint>

namespace retort::models {

// One task of attention: consecutive queries of one sequence with the heads of one group, against
// one kv head's blocks.
struct AttendTask {
  // [num_queries, group, head_dim], `q_stride` floats between queries, rotated
  const float* q = nullptr;
  float* out = nullptr;  // as q
  // of this layer and head; block b at keys + b * block_stride: [padded_dim, block_tokens]
  const float* keys = nullptr;
  const float* values = nullptr;   // likewise: [block_tokens, padded_dim]
  const int32_t* table = nullptr;  // the sequence's blocks
  float* scratch = nullptr;        // attend_scratch() floats
  int64_t q_stride = 0;
  int64_t block_stride = 0;
  int64_t first_position = 0;
  int64_t num_queries = 0;
  int64_t group = 0;
  int64_t head_dim = 0;
  int64_t padded_dim = 0;
  int64_t block_tokens = 0;
  int64_t window = 0;  // tokens that a query sees, its own included; 0: all earlier ones
  float scale = 1;
  float softcap = 0;  // c > 0: scaled scores x become c tanh(x / c)
};

struct VectorKernels {
  // y[r, n] = or += sum_k x[r, k] w[n, k] + bias[n] for r < rows and begin <= n < end. w [*,
  // inner]; ldx, ldy: row strides.
  void (*product_float)(const float* x, int64_t ldx, const float* w, int64_t inner,
                        const float* bias, float* y, int64_t ldy, int64_t rows, int64_t begin,
                        int64_t end, bool add);
  void (*product_bfloat16)(const float* x, int64_t ldx, const uint16_t* w, int64_t inner,
                           const float* bias, float* y, int64_t ldy, int64_t rows, int64_t begin,
                           int64_t end, bool add);
  // y = x / sqrt(mean(x^2) + eps) * w over `width`; y may be x.
  void (*norm)(const float* x, const float* w, float* y, int64_t width, float eps);
  void (*swiglu)(float* gate, const float* up, int64_t size);  // gate = silu(gate) * up
  void (*geglu)(float* gate, const float* up, int64_t size);   // the same of GELU's tanh formula
  // The first 2 * half dimensions of each head, by cos and sin [half].
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t heads, int64_t head_dim,
                 int64_t half);
  void (*softcap)(float* x, int64_t size, float scale, float cap);  // x = cap tanh(scale x / cap)
  void (*attend)(const AttendTask& task);
  // The largest of x (NaN is skipped) and the smallest.
  void (*range)(const float* x, int64_t size, float* largest, float* smallest);
  int64_t (*find)(const float* x, int64_t size, float value);  // first index, or size
  // out[i] = e^((x[i] - shift) * scale), unless out is null; the sum in fp64 over pieces of 4096.
  double (*exponentials)(const float* x, float* out, int64_t size, float shift, float scale);
  // argmax of weights[i] / E(i), E(i) = -log(uniform of (noise_key, i)): the exponential race,
  // which is the Gumbel maximum of log weights[i]. Weights of 0 never win.
  // Cost: a bound in float for each id, and the score of the few that may win by it.
  int64_t (*race)(const float* weights, int64_t size, uint64_t noise_key);
  // The same token in every case, by the score of every id: what the bound is held against by tests
  // and race_bench.
  int64_t (*plain_race)(const float* weights, int64_t size, uint64_t noise_key);
};

// Scratch of AttendTask for sequences of up to `length` tokens.
constexpr int64_t attend_scratch(int64_t length, int64_t padded_dim) {
  return 4 * ((length + 15) / 16 * 16 + padded_dim);
}

enum class VectorWidth { kPortable, kAvx2, kAvx512 };

const VectorKernels& vector_kernels();  // for the widest vectors that this processor has
// Null where this processor has no such vectors: for tests and benchmarks.
const VectorKernels* kernels_of(VectorWidth width);

// mix(mix(mix(seed) ^ a) ^ b): the part of base/random.h's random_bits(seed, a, b, c) that does not
// depend on c.
uint64_t noise_key(uint64_t seed, uint64_t a, uint64_t b);

}  // namespace retort::models
