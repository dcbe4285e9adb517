// Attention over blocks and what stands before it, for VectorKernels. Private to models/.
#pragma once

#include "models/generation/cpu_kernels/vector_types.h"

namespace retort::models {
namespace {

void norm(const float* x, const float* w, float* y, int64_t width, float eps) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i)
    squares += x[i] * x[i];
  const float r = 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i)
    y[i] = w[i] * (x[i] * r);
}

void swiglu(float* __restrict gate, const float* __restrict up, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i)
    gate[i] = gate[i] / (1.0f + exp_float(-gate[i])) * up[i];
}

// g sigmoid(2 sqrt(2 / pi) (g + 0.044715 g^3)) * up.
void geglu(float* __restrict gate, const float* __restrict up, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const float g = gate[i];
    const float a = 1.5957691216057308f * (g + 0.044715f * g * g * g);
    gate[i] = g / (1.0f + exp_float(-a)) * up[i];
  }
}

void softcap(float* x, int64_t size, float scale, float cap) {
  const float twice = 2.0f * scale / cap;  // tanh(a) = 1 - 2 / (e^(2 a) + 1)
#pragma omp simd
  for (int64_t i = 0; i < size; ++i)
    x[i] = cap - 2.0f * cap / (exp_float(twice * x[i]) + 1.0f);
}

void rotate(float* x, const float* __restrict cos, const float* __restrict sin, int64_t heads,
            int64_t head_dim, int64_t half) {
  for (int64_t h = 0; h < heads; ++h) {
    float* __restrict a = x + h * head_dim;
    float* __restrict b = a + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float u = a[i];
      const float v = b[i];
      a[i] = u * cos[i] - v * sin[i];
      b[i] = v * cos[i] + u * sin[i];
    }
  }
}

struct QueryRow {
  const float* q;
  float* out;
  int64_t low;  // it sees positions [low, high)
  int64_t high;
  float* scores;  // by position
};

// scores[t] = q . k_t for the 16-token groups that cover [low, high).
template <int kRows>
RETORT_INLINE void score_rows(const AttendTask& task, const QueryRow* rows, int64_t low,
                              int64_t high) {
  // Groups of 16 tokens never cross a block, because block sizes are multiples of 16.
  for (int64_t t = low / 16 * 16; t < high; t += 16) {
    const int64_t offset = t % task.block_tokens;
    const int64_t block = task.table[t / task.block_tokens] * task.block_stride;
    const float* keys = task.keys + block + offset;

    // The values of these tokens and the keys of the next ones are needed soon, but the gather over
    // blocks hides them from the hardware prefetcher.
    const float* values = task.values + block + offset * task.padded_dim;
    const int64_t next = t + 16 < high ? t + 16 : t;
    const float* next_keys = task.keys + task.table[next / task.block_tokens] * task.block_stride +
                             next % task.block_tokens;
    for (int64_t d = 0; d < task.head_dim; ++d) {
      __builtin_prefetch(next_keys + d * task.block_tokens);
      __builtin_prefetch(values + d * 16);
    }

    // The sum of every query row runs in the order of d, however many rows share the pass.
    for (int part = 0; part < 16; part += kLanes) {
      Vec acc[kRows] = {};
      for (int64_t d = 0; d < task.head_dim; ++d) {
        const Vec k = load(keys + d * task.block_tokens + part);
        for (int r = 0; r < kRows; ++r)
          acc[r] += rows[r].q[d] * k;
      }
      for (int r = 0; r < kRows; ++r)
        store(rows[r].scores + t + part, acc[r]);
    }
  }
}

// Turns scores into e^(scale * (score - largest)), and into 0 at the positions of [low, high) that
// the row does not see. Returns their sum.
RETORT_INLINE float softmax_row(const QueryRow& row, int64_t low, int64_t high, float scale) {
  // Exponentials are relative to the largest score, so that none overflows.
  float* scores = row.scores;
  float largest = -__builtin_inff();
  float total = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t t = row.low; t < row.high; ++t)
    largest = scores[t] > largest ? scores[t] : largest;
#pragma omp simd reduction(+ : total)
  for (int64_t t = row.low; t < row.high; ++t) {
    scores[t] = exp_float((scores[t] - largest) * scale);
    total += scores[t];
  }
  for (int64_t t = low; t < row.low; ++t)
    scores[t] = 0;
  for (int64_t t = row.high; t < high; ++t)
    scores[t] = 0;
  return total;
}

template <int kRows, int kVecs>
RETORT_INLINE void mix_values(const AttendTask& task, const QueryRow* rows, int64_t low,
                              int64_t high, int64_t dim, const float* inverse, float* mixed) {
  Vec acc[kRows][kVecs] = {};
  for (int64_t t = low; t < high;) {
    const int64_t offset = t % task.block_tokens;
    const int64_t left = task.block_tokens - offset;
    const int64_t stop = t + left < high ? t + left : high;
    const float* values = task.values + task.table[t / task.block_tokens] * task.block_stride +
                          offset * task.padded_dim + dim;
    for (; t < stop; ++t, values += task.padded_dim) {
      for (int v = 0; v < kVecs; ++v) {
        const Vec x = load(values + v * kLanes);
        for (int r = 0; r < kRows; ++r)
          acc[r][v] += rows[r].scores[t] * x;
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v)
      store(mixed + r * task.padded_dim + dim + v * kLanes, acc[r][v] * inverse[r]);
  }
}

template <int kRows>
RETORT_INLINE void attend_rows(const AttendTask& task, const QueryRow* rows, float* mixed) {
  int64_t low = rows[0].low;
  int64_t high = rows[0].high;
  for (int r = 1; r < kRows; ++r) {
    low = rows[r].low < low ? rows[r].low : low;
    high = rows[r].high > high ? rows[r].high : high;
  }

  // The rows share a pass over every position that one of them sees; softmax_row() sets what a row
  // does not see to 0.
  score_rows<kRows>(task, rows, low, high);
  float inverse[kRows];
  for (int r = 0; r < kRows; ++r) {
    if (task.softcap > 0)
      softcap(rows[r].scores + rows[r].low, rows[r].high - rows[r].low, task.scale, task.softcap);
    inverse[r] = 1.0f / softmax_row(rows[r], low, high, task.softcap > 0 ? 1.0f : task.scale);
  }
  int64_t dim = 0;
  for (; dim + 4 * kLanes <= task.padded_dim; dim += 4 * kLanes)
    mix_values<kRows, 4>(task, rows, low, high, dim, inverse, mixed);
  for (; dim + 2 * kLanes <= task.padded_dim; dim += 2 * kLanes)
    mix_values<kRows, 2>(task, rows, low, high, dim, inverse, mixed);
  for (; dim < task.padded_dim; dim += kLanes)
    mix_values<kRows, 1>(task, rows, low, high, dim, inverse, mixed);
  for (int r = 0; r < kRows; ++r) {
    for (int64_t d = 0; d < task.head_dim; ++d)
      rows[r].out[d] = mixed[r * task.padded_dim + d];
  }
}

// Up to four query rows share a pass over keys and values, which are read from memory once for all
// of them.
void attend(const AttendTask& task) {
  const int64_t last = task.first_position + task.num_queries;
  const int64_t stride = (last + 15) / 16 * 16;
  float* mixed = task.scratch + 4 * stride;

  // `rows` wait for their pass, each with its quarter of the scratch.
  QueryRow rows[4];
  int pending = 0;
  const auto flush = [&] {
    switch (pending) {
      case 1: attend_rows<1>(task, rows, mixed); break;
      case 2: attend_rows<2>(task, rows, mixed); break;
      case 3: attend_rows<3>(task, rows, mixed); break;
      case 4: attend_rows<4>(task, rows, mixed); break;
      default: break;
    }
    pending = 0;
  };

  // Rows are queued by position and then by head of the group.
  for (int64_t i = 0; i < task.num_queries; ++i) {
    const int64_t high = task.first_position + i + 1;
    const int64_t low = task.window > 0 && high > task.window ? high - task.window : 0;
    for (int64_t g = 0; g < task.group; ++g) {
      const int64_t at = i * task.q_stride + g * task.head_dim;
      rows[pending] = {task.q + at, task.out + at, low, high, task.scratch + pending * stride};
      if (++pending == 4) flush();
    }
  }
  flush();
}

}  // namespace
}  // namespace retort::models
