// Products of rows with weights, for VectorKernels. Private to models/.
#pragma once

#include "models/generation/cpu_kernels/vector_types.h"

namespace retort::models {
namespace {

// sums[i * 4 + j] = sum over the lanes of acc[i][j], each in the same order.
#ifdef __AVX512F__
// in each 128 bits: a0+a2, b0+b2, a1+a3, b1+b3
RETORT_INLINE Vec add_pairs(const Vec& a, const Vec& b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
         __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
// in each 128 bits: the sums of a, b, c, d
RETORT_INLINE Vec add_quads(const Vec& ab, const Vec& cd) {
  return __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                                 31);
}
// 128-bit parts: a0+a1, a2+a3, b0+b1, b2+b3
RETORT_INLINE Vec add_quarters(const Vec& a, const Vec& b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
template <int kRows>
RETORT_INLINE void lane_sums(const Vec (&acc)[kRows][4], float* sums) {
  Vec row[4] = {};
  for (int i = 0; i < kRows; ++i)
    row[i] = add_quads(add_pairs(acc[i][0], acc[i][1]), add_pairs(acc[i][2], acc[i][3]));
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
        for (int l = 0; l < width; ++l)
          lanes[l] += lanes[l + width];
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

// Multiplies kRows rows with one tile of columns. kAhead asks for the weights of the next tile,
// which lie behind those of this one.
template <int kRows, bool kAhead, class Weight>
RETORT_INLINE void product_tile(const float* x, int64_t ldx, const Weight* w, int64_t inner,
                                int64_t columns, const float* bias, float* y, int64_t ldy,
                                bool add) {
  // Columns beyond the last one repeat it, so that the loops need no condition; their sums are not
  // written.
  const Weight* row[kColumnTile];
  for (int j = 0; j < kColumnTile; ++j)
    row[j] = w + (j < columns ? j : columns - 1) * inner;

  // Whole vectors of the inner dimension come first.
  Vec acc[kRows][kColumnTile] = {};
  const int64_t whole = inner / kLanes * kLanes;
  for (int64_t k = 0; k < whole; k += kLanes) {
    Vec b[kColumnTile];
    for (int j = 0; j < kColumnTile; ++j)
      b[j] = load(row[j] + k);
    if (kAhead) {
      for (int j = 0; j < kColumnTile; ++j)
        __builtin_prefetch(row[j] + kColumnTile * inner + k);
    }
    for (int i = 0; i < kRows; ++i) {
      const Vec a = load(x + i * ldx + k);
      for (int j = 0; j < kColumnTile; ++j)
        acc[i][j] += a * b[j];
    }
  }

  // What is left of the inner dimension is filled up with zeros.
  if (whole < inner) {
    Vec b[kColumnTile];
    for (int j = 0; j < kColumnTile; ++j)
      b[j] = load_some(row[j] + whole, inner - whole);
    for (int i = 0; i < kRows; ++i) {
      const Vec a = load_some(x + i * ldx + whole, inner - whole);
      for (int j = 0; j < kColumnTile; ++j)
        acc[i][j] += a * b[j];
    }
  }

  // The lanes are summed in a fixed order, so that a row has the same bits in every tile.
  float sums[16];
  lane_sums(acc, sums);
  for (int i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const float value = sums[i * 4 + j] + (bias != nullptr ? bias[j] : 0.0f);
      y[i * ldy + j] = add ? y[i * ldy + j] + value : value;
    }
  }
}

// Multiplies panels of weights that stay in the second cache with chunks of rows that stay in the
// first.
template <class Weight>
RETORT_INLINE void product(const float* x, int64_t ldx, const Weight* w, int64_t inner,
                           const float* bias, float* y, int64_t ldy, int64_t rows, int64_t begin,
                           int64_t end, bool add) {
  // The sizes follow from the bytes of a row in fp32.
  const int64_t inner_bytes = inner * 4;
  int64_t panel = (384 << 10) / inner_bytes / kColumnTile * kColumnTile;
  int64_t chunk = (24 << 10) / inner_bytes / kRowTile * kRowTile;
  panel = panel < 16 ? 16 : panel;
  chunk = chunk < 2 * kRowTile ? 2 * kRowTile : chunk;

  // A tile of columns is multiplied with all rows of a chunk before the next tile is read.
  for (int64_t n0 = begin; n0 < end; n0 += panel) {
    const int64_t n1 = n0 + panel < end ? n0 + panel : end;
    for (int64_t r0 = 0; r0 < rows; r0 += chunk) {
      const int64_t r1 = r0 + chunk < rows ? r0 + chunk : rows;
      for (int64_t n = n0; n < n1; n += kColumnTile) {
        const int64_t columns = n1 - n < kColumnTile ? n1 - n : kColumnTile;
        const float* b = bias != nullptr ? bias + n : nullptr;

        // Only the first tile of rows asks for the next weights: later tiles find them in the
        // cache.
        const auto tile = [&](int64_t r, auto count, auto ahead) __attribute__((always_inline)) {
          product_tile<count.value, ahead.value>(x + r * ldx, ldx, w + n * inner, inner, columns, b,
                                                 y + r * ldy + n, ldy, add);
        };
        const auto tiles = [&](int64_t r, auto count) __attribute__((always_inline)) {
          if (r == 0) {
            tile(r, count, Number<1>());
          } else {
            tile(r, count, Number<0>());
          }
        };

        // Whole tiles of rows come first, then what is left of the chunk.
        int64_t r = r0;
        for (; r + kRowTile <= r1; r += kRowTile)
          tiles(r, Number<kRowTile>());
        switch (r1 - r) {  // fewer than kRowTile
          case 3: tiles(r, Number<3>()); break;
          case 2: tiles(r, Number<2>()); break;
          case 1: tiles(r, Number<1>()); break;
          default: break;
        }
      }
    }
  }
}

void product_float(const float* x, int64_t ldx, const float* w, int64_t inner, const float* bias,
                   float* y, int64_t ldy, int64_t rows, int64_t begin, int64_t end, bool add) {
  product(x, ldx, w, inner, bias, y, ldy, rows, begin, end, add);
}
void product_bfloat16(const float* x, int64_t ldx, const uint16_t* w, int64_t inner,
                      const float* bias, float* y, int64_t ldy, int64_t rows, int64_t begin,
                      int64_t end, bool add) {
  product(x, ldx, w, inner, bias, y, ldy, rows, begin, end, add);
}

}  // namespace
}  // namespace retort::models
