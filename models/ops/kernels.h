// Loops over fp32 rows on the CPU that ATen has no single operator for. Private to models/. Every
// function runs in parallel over rows; sums over a row are in a fixed order for a given number of
// threads.
#pragma once

#include <cstdint>

namespace retort::models {

// y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps), rows of `width`. `rstd` [rows] is
// written.
void rms_norm_forward(const float* x, const float* w, float* y, float* rstd, int64_t rows,
                      int64_t width, float eps);
// sum = a + b, then as above on sum.
void add_rms_norm_forward(const float* a, const float* b, const float* w, float* sum, float* y,
                          float* rstd, int64_t rows, int64_t width, float eps);
// dx = (extra ? extra : 0) + gradient of rms_norm at x; dw [width] is written unless null.
void rms_norm_backward(const float* dy, const float* x, const float* w, const float* rstd,
                       const float* extra, float* dx, float* dw, int64_t rows, int64_t width);

// out = silu(gate) * up over `size` elements.
void swiglu_forward(const float* gate, const float* up, float* out, int64_t size);
void swiglu_backward(const float* dout, const float* gate, const float* up, float* dgate,
                     float* dup, int64_t size);
// out = gelu(gate) * up, GELU by its tanh formula.
void geglu_forward(const float* gate, const float* up, float* out, int64_t size);
void geglu_backward(const float* dout, const float* gate, const float* up, float* dgate, float* dup,
                    int64_t size);

// Rotates x [rows, heads, head_dim] in place by the angles whose cos and sin are [rows, half];
// pairs are (i, i + half), what lies behind 2 * half stays. `sign` -1 multiplies by the transpose:
// the gradient, and where cos and sin have no factor the way back.
void rotate_rows(float* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
                 int64_t head_dim, int64_t half, float sign);

}  // namespace retort::models
