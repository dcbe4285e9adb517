// The functions of VectorKernels for the vector width that the including file is compiled for. Everything is in an anonymous
// namespace: the three files that include this differ in their instruction set, so nothing with external linkage, inline
// functions of the standard library among them, may be instantiated here.
#pragma once

#include <stdint.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "models/generation/vector_kernels.h"

#define RETORT_INLINE inline __attribute__((always_inline))

namespace retort::models {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRowTile = 4;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRowTile = 2;
#else
constexpr int kLanes = 4, kRowTile = 2;
#endif
constexpr int kColumnTile = 4;

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float LooseVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint16_t LooseHalfVec __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
typedef uint32_t IntVec __attribute__((vector_size(4 * kLanes)));

RETORT_INLINE float bit_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

RETORT_INLINE Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
RETORT_INLINE Vec load(const uint16_t* p) {
  const IntVec wide = __builtin_convertvector(*reinterpret_cast<const LooseHalfVec*>(p), IntVec) << 16;
  return (Vec)wide;
}
RETORT_INLINE void store(float* p, const Vec& v) { *reinterpret_cast<LooseVec*>(p) = v; }

// The first `count` lanes, the others 0.
RETORT_INLINE Vec load_some(const float* p, int64_t count) {
#ifdef __AVX512F__
  return (Vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
#else
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
#endif
}
RETORT_INLINE Vec load_some(const uint16_t* p, int64_t count) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = bit_float(static_cast<uint32_t>(p[i]) << 16);
  return load(lanes);
}

// sums[i * 4 + j] = sum over the lanes of acc[i][j], each in the same order.
#ifdef __AVX512F__
RETORT_INLINE Vec add_pairs(const Vec& a, const Vec& b) {  // in each 128 bits: a0+a2, b0+b2, a1+a3, b1+b3
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
         __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
RETORT_INLINE Vec add_quads(const Vec& ab, const Vec& cd) {  // in each 128 bits: the sums of a, b, c, d
  return __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
RETORT_INLINE Vec add_quarters(const Vec& a, const Vec& b) {  // 128-bit parts: a0+a1, a2+a3, b0+b1, b2+b3
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
template <int kRows>
RETORT_INLINE void lane_sums(const Vec (&acc)[kRows][4], float* sums) {
  Vec row[4] = {};
  for (int i = 0; i < kRows; ++i) row[i] = add_quads(add_pairs(acc[i][0], acc[i][1]), add_pairs(acc[i][2], acc[i][3]));
  store(sums, add_quarters(add_quarters(row[0], row[1]), add_quarters(row[2], row[3])));
}
#else
template <int kRows>
RETORT_INLINE void lane_sums(const Vec (&acc)[kRows][4], float* sums) {
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < 4; ++j) {
      float lanes[kLanes];
      store(lanes, acc[i][j]);
      for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
      }
      sums[i * 4 + j] = lanes[0];
    }
  }
}
#endif

template <int kValue>
struct Number {
  static constexpr int value = kValue;
};

// kAhead: asks for the next tile's weights, which lie behind this one's.
template <int kRows, bool kAhead, class Weight>
RETORT_INLINE void product_tile(const float* x, int64_t ldx, const Weight* w, int64_t inner, int64_t columns, const float* bias,
                                float* y, int64_t ldy, bool add) {
  const Weight* row[kColumnTile];
  for (int j = 0; j < kColumnTile; ++j) row[j] = w + (j < columns ? j : columns - 1) * inner;
  Vec acc[kRows][kColumnTile] = {};
  const int64_t whole = inner / kLanes * kLanes;
  for (int64_t k = 0; k < whole; k += kLanes) {
    Vec b[kColumnTile];
    for (int j = 0; j < kColumnTile; ++j) b[j] = load(row[j] + k);
    if (kAhead) {
      for (int j = 0; j < kColumnTile; ++j) __builtin_prefetch(row[j] + kColumnTile * inner + k);
    }
    for (int i = 0; i < kRows; ++i) {
      const Vec a = load(x + i * ldx + k);
      for (int j = 0; j < kColumnTile; ++j) acc[i][j] += a * b[j];
    }
  }
  if (whole < inner) {
    Vec b[kColumnTile];
    for (int j = 0; j < kColumnTile; ++j) b[j] = load_some(row[j] + whole, inner - whole);
    for (int i = 0; i < kRows; ++i) {
      const Vec a = load_some(x + i * ldx + whole, inner - whole);
      for (int j = 0; j < kColumnTile; ++j) acc[i][j] += a * b[j];
    }
  }
  float sums[16];
  lane_sums(acc, sums);
  for (int i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const float value = sums[i * 4 + j] + (bias != nullptr ? bias[j] : 0.0f);
      y[i * ldy + j] = add ? y[i * ldy + j] + value : value;
    }
  }
}

// Panels of weights that stay in the second cache, chunks of rows that stay in the first.
template <class Weight>
RETORT_INLINE void product(const float* x, int64_t ldx, const Weight* w, int64_t inner, const float* bias, float* y, int64_t ldy,
                           int64_t rows, int64_t begin, int64_t end, bool add) {
  const int64_t inner_bytes = inner * 4;
  int64_t panel = (384 << 10) / inner_bytes / kColumnTile * kColumnTile, chunk = (24 << 10) / inner_bytes / kRowTile * kRowTile;
  panel = panel < 16 ? 16 : panel;
  chunk = chunk < 2 * kRowTile ? 2 * kRowTile : chunk;
  for (int64_t n0 = begin; n0 < end; n0 += panel) {
    const int64_t n1 = n0 + panel < end ? n0 + panel : end;
    for (int64_t r0 = 0; r0 < rows; r0 += chunk) {
      const int64_t r1 = r0 + chunk < rows ? r0 + chunk : rows;
      for (int64_t n = n0; n < n1; n += kColumnTile) {
        const int64_t columns = n1 - n < kColumnTile ? n1 - n : kColumnTile;
        const float* b = bias != nullptr ? bias + n : nullptr;
        const auto tile = [&](int64_t r, auto count, auto ahead) __attribute__((always_inline)) {
          product_tile<count.value, ahead.value>(x + r * ldx, ldx, w + n * inner, inner, columns, b, y + r * ldy + n, ldy, add);
        };
        int64_t r = r0;
        if (r0 == 0 && r + kRowTile <= r1) {
          tile(r, Number<kRowTile>(), Number<1>());
          r += kRowTile;
        }
        for (; r + kRowTile <= r1; r += kRowTile) tile(r, Number<kRowTile>(), Number<0>());
        for (; r < r1; ++r) tile(r, Number<1>(), Number<0>());
      }
    }
  }
}

void product_float(const float* x, int64_t ldx, const float* w, int64_t inner, const float* bias, float* y, int64_t ldy,
                   int64_t rows, int64_t begin, int64_t end, bool add) {
  product(x, ldx, w, inner, bias, y, ldy, rows, begin, end, add);
}
void product_bfloat16(const float* x, int64_t ldx, const uint16_t* w, int64_t inner, const float* bias, float* y, int64_t ldy,
                      int64_t rows, int64_t begin, int64_t end, bool add) {
  product(x, ldx, w, inner, bias, y, ldy, rows, begin, end, add);
}

void norm(const float* x, const float* w, float* y, int64_t width, float eps) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const float r = 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) y[i] = w[i] * (x[i] * r);
}

// e^x within 2 units in the last place on [-87, 88], clamped outside.
RETORT_INLINE float exp_float(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const float n = (x * 1.44269504088896341f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * bit_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

void swiglu(float* __restrict gate, const float* __restrict up, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) gate[i] = gate[i] / (1.0f + exp_float(-gate[i])) * up[i];
}

void rotate(float* x, const float* __restrict cos, const float* __restrict sin, int64_t heads, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h) {
    float* __restrict a = x + h * head_dim;
    float* __restrict b = a + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float u = a[i], v = b[i];
      a[i] = u * cos[i] - v * sin[i];
      b[i] = v * cos[i] + u * sin[i];
    }
  }
}

struct QueryRow {
  const float* q;
  float* out;
  int64_t low, high;  // the positions it sees
  float* scores;      // by position
};

// scores[t] = q . k_t for the 16-token groups that cover [low, high).
template <int kRows>
RETORT_INLINE void score_rows(const AttendTask& task, const QueryRow* rows, int64_t low, int64_t high) {
  for (int64_t t = low / 16 * 16; t < high; t += 16) {
    const int64_t offset = t % task.block_tokens, block = task.table[t / task.block_tokens] * task.block_stride;
    const float* keys = task.keys + block + offset;
    // Soon needed: these tokens' values and the next tokens' keys, which a gather over blocks hides from the hardware.
    const float* values = task.values + block + offset * task.padded_dim;
    const int64_t next = t + 16 < high ? t + 16 : t;
    const float* next_keys = task.keys + task.table[next / task.block_tokens] * task.block_stride + next % task.block_tokens;
    for (int64_t d = 0; d < task.head_dim; ++d) {
      __builtin_prefetch(next_keys + d * task.block_tokens);
      __builtin_prefetch(values + d * 16);
    }
    for (int part = 0; part < 16; part += kLanes) {
      Vec acc[kRows] = {};
      for (int64_t d = 0; d < task.head_dim; ++d) {
        const Vec k = load(keys + d * task.block_tokens + part);
        for (int r = 0; r < kRows; ++r) acc[r] += rows[r].q[d] * k;
      }
      for (int r = 0; r < kRows; ++r) store(rows[r].scores + t + part, acc[r]);
    }
  }
}

// Scores become e^(scale * (score - largest)), 0 at the positions of [low, high) that the row does not see. The sum.
RETORT_INLINE float softmax_row(const QueryRow& row, int64_t low, int64_t high, float scale) {
  float* scores = row.scores;
  float largest = -__builtin_inff(), total = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t t = row.low; t < row.high; ++t) largest = scores[t] > largest ? scores[t] : largest;
#pragma omp simd reduction(+ : total)
  for (int64_t t = row.low; t < row.high; ++t) {
    scores[t] = exp_float((scores[t] - largest) * scale);
    total += scores[t];
  }
  for (int64_t t = low; t < row.low; ++t) scores[t] = 0;
  for (int64_t t = row.high; t < high; ++t) scores[t] = 0;
  return total;
}

template <int kRows, int kVecs>
RETORT_INLINE void mix_values(const AttendTask& task, const QueryRow* rows, int64_t low, int64_t high, int64_t dim,
                              const float* inverse, float* mixed) {
  Vec acc[kRows][kVecs] = {};
  for (int64_t t = low; t < high;) {
    const int64_t offset = t % task.block_tokens, left = task.block_tokens - offset, stop = t + left < high ? t + left : high;
    const float* values = task.values + task.table[t / task.block_tokens] * task.block_stride + offset * task.padded_dim + dim;
    for (; t < stop; ++t, values += task.padded_dim) {
      for (int v = 0; v < kVecs; ++v) {
        const Vec x = load(values + v * kLanes);
        for (int r = 0; r < kRows; ++r) acc[r][v] += rows[r].scores[t] * x;
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(mixed + r * task.padded_dim + dim + v * kLanes, acc[r][v] * inverse[r]);
  }
}

template <int kRows>
RETORT_INLINE void attend_rows(const AttendTask& task, const QueryRow* rows, float* mixed) {
  int64_t low = rows[0].low, high = rows[0].high;
  for (int r = 1; r < kRows; ++r) {
    low = rows[r].low < low ? rows[r].low : low;
    high = rows[r].high > high ? rows[r].high : high;
  }
  score_rows<kRows>(task, rows, low, high);
  float inverse[kRows];
  for (int r = 0; r < kRows; ++r) inverse[r] = 1.0f / softmax_row(rows[r], low, high, task.scale);
  int64_t dim = 0;
  for (; dim + 4 * kLanes <= task.padded_dim; dim += 4 * kLanes) mix_values<kRows, 4>(task, rows, low, high, dim, inverse, mixed);
  for (; dim + 2 * kLanes <= task.padded_dim; dim += 2 * kLanes) mix_values<kRows, 2>(task, rows, low, high, dim, inverse, mixed);
  for (; dim < task.padded_dim; dim += kLanes) mix_values<kRows, 1>(task, rows, low, high, dim, inverse, mixed);
  for (int r = 0; r < kRows; ++r) {
    for (int64_t d = 0; d < task.head_dim; ++d) rows[r].out[d] = mixed[r * task.padded_dim + d];
  }
}

void attend(const AttendTask& task) {
  const int64_t last = task.first_position + task.num_queries, stride = (last + 15) / 16 * 16;
  float* mixed = task.scratch + 4 * stride;
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

void range(const float* x, int64_t size, float* largest, float* smallest) {
  float high = -__builtin_inff(), low = __builtin_inff();
#pragma omp simd reduction(max : high) reduction(min : low)
  for (int64_t i = 0; i < size; ++i) {
    high = x[i] > high ? x[i] : high;
    low = x[i] < low ? x[i] : low;
  }
  *largest = high;
  *smallest = low;
}

int64_t find(const float* x, int64_t size, float value) {
  constexpr int64_t kPiece = 256;
  int64_t i = 0;
  for (; i + kPiece <= size; i += kPiece) {
    int found = 0;
#pragma omp simd reduction(| : found)
    for (int64_t j = 0; j < kPiece; ++j) found |= x[i + j] == value;
    if (found) break;
  }
  while (i < size && !(x[i] == value)) ++i;
  return i;
}

double exponentials(const float* __restrict x, float* __restrict out, int64_t size, float shift, float scale) {
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += 4096) {
    const int64_t end = begin + 4096 < size ? begin + 4096 : size;
    float sum = 0;
    if (out != nullptr) {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i) {
        out[i] = exp_float((x[i] - shift) * scale);
        sum += out[i];
      }
    } else {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i) sum += exp_float((x[i] - shift) * scale);
    }
    total += sum;
  }
  return total;
}

RETORT_INLINE uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// -log(u) of a normal u in (0, 1), to about 1e-11: u = 2^k m with m in [1/sqrt(2), sqrt(2)), log m = 2 artanh((m-1)/(m+1)).
RETORT_INLINE double minus_log(double u) {
  const auto bits = __builtin_bit_cast(int64_t, u);
  const int64_t k = (bits - 0x3fe6a09e667f3bcdLL) >> 52;
  const double m = __builtin_bit_cast(double, bits - (k << 52));
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return -(static_cast<double>(k) * 0.6931471805599453 + 2.0 * (s + s * z * p));
}

int64_t race(const float* weights, int64_t size, uint64_t key) {
  constexpr int64_t kPiece = 512;
  double scores[kPiece], best = 0;
  int64_t winner = 0;
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    const int64_t count = size - begin < kPiece ? size - begin : kPiece;
    double largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t bits = mix(key ^ static_cast<uint64_t>(begin + i));
      const double u = (static_cast<double>(static_cast<int64_t>(bits >> 11)) + 0.5) * 0x1.0p-53;
      scores[i] = static_cast<double>(weights[begin + i]) / minus_log(u);
      largest = scores[i] > largest ? scores[i] : largest;
    }
    if (!(largest > best)) continue;
    best = largest;
    int64_t i = 0;
    while (scores[i] != largest) ++i;
    winner = begin + i;
  }
  return winner;
}

constexpr VectorKernels kKernels{product_float, product_bfloat16, norm, swiglu, rotate, attend, range, find, exponentials, race};

}  // namespace
}  // namespace retort::models
