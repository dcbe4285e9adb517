#include "models/ops/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "models/ops/exp_float.h"

// Compiles a function for each vector width. The loader chooses, before the thread sanitizer has
// begun, which would watch the choice: there the attribute is off.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define RETORT_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define RETORT_VECTOR_CLONES
#endif

namespace retort::models {
namespace {

constexpr int64_t kGrainElements = 16384;

int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width));
}

RETORT_VECTOR_CLONES
void norm_row(const float* __restrict x, const float* __restrict w, float* __restrict y,
              float* rstd, int64_t width, float eps) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i)
    squares += x[i] * x[i];
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
  *rstd = r;
#pragma omp simd
  for (int64_t i = 0; i < width; ++i)
    y[i] = w[i] * (x[i] * r);
}

RETORT_VECTOR_CLONES
void add_row(const float* __restrict a, const float* __restrict b, float* __restrict sum,
             int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i)
    sum[i] = a[i] + b[i];
}

RETORT_VECTOR_CLONES
void norm_row_backward(const float* __restrict dy, const float* __restrict x,
                       const float* __restrict w, float rstd, const float* __restrict extra,
                       float* __restrict dx, float* __restrict dw, int64_t width) {
  // With r = rstd and n = width: dx = r (dy w - x r^2 dot / n), dot = sum(dy w x); dw += dy x r.
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < width; ++i)
    dot += dy[i] * w[i] * x[i];
  const float shrink = dot * rstd * rstd / static_cast<float>(width);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    dw[i] += dy[i] * x[i] * rstd;
    dx[i] = rstd * (dy[i] * w[i] - x[i] * shrink);
  }
  if (extra == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < width; ++i)
    dx[i] += extra[i];
}

RETORT_VECTOR_CLONES
void swiglu_range(const float* __restrict gate, const float* __restrict up, float* __restrict out,
                  int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i)
    out[i] = gate[i] / (1.0f + exp_float(-gate[i])) * up[i];
}

RETORT_VECTOR_CLONES
void swiglu_backward_range(const float* __restrict dout, const float* __restrict gate,
                           const float* __restrict up, float* __restrict dgate,
                           float* __restrict dup, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const float g = gate[i];
    const float s = 1.0f / (1.0f + exp_float(-g));
    const float d = dout[i];
    dup[i] = d * (g * s);
    dgate[i] = d * up[i] * (s * (1.0f + g * (1.0f - s)));
  }
}

// gelu(g) by its tanh formula is g sigmoid(a(g)) with a(g) = 2 sqrt(2 / pi) (g + 0.044715 g^3).
constexpr float kGeluSlope = 1.5957691216057308f;
constexpr float kGeluCubic = 0.044715f;

RETORT_VECTOR_CLONES
void geglu_range(const float* __restrict gate, const float* __restrict up, float* __restrict out,
                 int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const float g = gate[i];
    const float a = kGeluSlope * (g + kGeluCubic * g * g * g);
    out[i] = g / (1.0f + exp_float(-a)) * up[i];
  }
}

RETORT_VECTOR_CLONES
void geglu_backward_range(const float* __restrict dout, const float* __restrict gate,
                          const float* __restrict up, float* __restrict dgate,
                          float* __restrict dup, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const float g = gate[i];
    const float s = 1.0f / (1.0f + exp_float(-kGeluSlope * (g + kGeluCubic * g * g * g)));
    const float slope = kGeluSlope * (1.0f + 3.0f * kGeluCubic * g * g);
    const float d = dout[i];
    dup[i] = d * (g * s);
    dgate[i] = d * up[i] * (s * (1.0f + g * (1.0f - s) * slope));
  }
}

RETORT_VECTOR_CLONES
void rotate_row(float* __restrict x, const float* __restrict cos, const float* __restrict sin,
                int64_t heads, int64_t head_dim, int64_t half, float sign) {
  for (int64_t h = 0; h < heads; ++h) {
    float* a = x + h * head_dim;
    float* b = a + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float c = cos[i];
      const float s = sign * sin[i];
      const float u = a[i];
      const float v = b[i];
      a[i] = u * c - v * s;
      b[i] = v * c + u * s;
    }
  }
}

RETORT_VECTOR_CLONES
void add_scaled(float* __restrict out, const float* __restrict x, float factor, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i)
    out[i] += factor * x[i];
}

}  // namespace

void rms_norm_forward(const float* x, const float* w, float* y, float* rstd, int64_t rows,
                      int64_t width, float eps) {
  at::parallel_for(0, rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      norm_row(x + n * width, w, y + n * width, rstd + n, width, eps);
  });
}

void add_rms_norm_forward(const float* a, const float* b, const float* w, float* sum, float* y,
                          float* rstd, int64_t rows, int64_t width, float eps) {
  at::parallel_for(0, rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      add_row(a + n * width, b + n * width, sum + n * width, width);
      norm_row(sum + n * width, w, y + n * width, rstd + n, width, eps);
    }
  });
}

void rms_norm_backward(const float* dy, const float* x, const float* w, const float* rstd,
                       const float* extra, float* dx, float* dw, int64_t rows, int64_t width) {
  // Each thread sums dw for its rows; the sums are added in thread order.
  const auto threads = static_cast<size_t>(at::get_num_threads());
  std::vector<float> partial(threads * static_cast<size_t>(width), 0.0f);
  at::parallel_for(0, rows, row_grain(width), [&](int64_t begin, int64_t end) {
    float* mine = partial.data() + at::get_thread_num() * width;
    for (int64_t n = begin; n < end; ++n) {
      const int64_t at = n * width;
      norm_row_backward(dy + at, x + at, w, rstd[n], extra ? extra + at : nullptr, dx + at, mine,
                        width);
    }
  });
  if (dw == nullptr) return;
  std::memcpy(dw, partial.data(), sizeof(float) * static_cast<size_t>(width));
  for (size_t t = 1; t < threads; ++t)
    add_scaled(dw, partial.data() + t * static_cast<size_t>(width), 1.0f, width);
}

void swiglu_forward(const float* gate, const float* up, float* out, int64_t size) {
  at::parallel_for(0, size, kGrainElements, [&](int64_t begin, int64_t end) {
    swiglu_range(gate + begin, up + begin, out + begin, end - begin);
  });
}

void swiglu_backward(const float* dout, const float* gate, const float* up, float* dgate,
                     float* dup, int64_t size) {
  at::parallel_for(0, size, kGrainElements, [&](int64_t begin, int64_t end) {
    swiglu_backward_range(dout + begin, gate + begin, up + begin, dgate + begin, dup + begin,
                          end - begin);
  });
}

void geglu_forward(const float* gate, const float* up, float* out, int64_t size) {
  at::parallel_for(0, size, kGrainElements, [&](int64_t begin, int64_t end) {
    geglu_range(gate + begin, up + begin, out + begin, end - begin);
  });
}

void geglu_backward(const float* dout, const float* gate, const float* up, float* dgate, float* dup,
                    int64_t size) {
  at::parallel_for(0, size, kGrainElements, [&](int64_t begin, int64_t end) {
    geglu_backward_range(dout + begin, gate + begin, up + begin, dgate + begin, dup + begin,
                         end - begin);
  });
}

void rotate_rows(float* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
                 int64_t head_dim, int64_t half, float sign) {
  const int64_t width = heads * head_dim;
  at::parallel_for(0, rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      rotate_row(x + n * width, cos + n * half, sin + n * half, heads, head_dim, half, sign);
  });
}

}  // namespace retort::models
