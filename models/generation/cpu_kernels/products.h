// Products of a few rows with weights as they lie, for the steps of generation. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

#include "models/config/activation.h"
#include "models/generation/cpu_kernels/worker_pool.h"

namespace retort::models {

// A linear layer's weight [out, in] and bias. fp32 and bf16 weights are read where they are, so
// that values written into them are seen; another floating dtype is copied to fp32 here.
struct Matrix {
  Matrix() = default;
  Matrix(const at::Tensor& weight, const at::Tensor& bias);  // `bias` may be undefined
  at::Tensor weight, bias;
  int64_t out = 0;
  int64_t in = 0;
};

struct Product {
  const Matrix* matrix;
  float* y;  // rows of `stride` floats
  int64_t stride;
  bool add = false;  // y += instead of y =
};

// Each y (+)= x w^T + bias for x [rows, in], rows `x_stride` floats apart; the columns of all of
// them in parallel. A row's numbers do not depend on the other rows nor on the threads.
void multiply(WorkerPool& pool, const float* x, int64_t x_stride, int64_t rows,
              std::initializer_list<Product> products);
// y = activation(x gate^T) * (x up^T) with their biases, rows of `stride` floats; `scratch` is as
// large.
void multiply_gated(WorkerPool& pool, const float* x, int64_t x_stride, int64_t rows,
                    const Matrix& gate, const Matrix& up, Activation activation, float* y,
                    float* scratch, int64_t stride);

}  // namespace retort::models
