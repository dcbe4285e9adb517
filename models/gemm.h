// The three matrix products of a linear layer, without autograd. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

namespace retort::models {

// fp32 products on the CPU go to oneDNN (measured on an AMD EPYC: 2.2 times the rate of LibTorch's
// BLAS), small ones and other dtypes and devices to ATen. oneDNN compiles a kernel for each new
// shape (about 3 ms), so callers keep the number of different row counts small: see padded_rows().

// x w^T + b
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// g w
at::Tensor linear_grad_input(const at::Tensor& grad, const at::Tensor& weight);
// g^T x
at::Tensor linear_grad_weight(const at::Tensor& grad, const at::Tensor& x);

// The row count that `rows` is rounded up to, so that packs of ever different lengths share their
// compiled kernels.
int64_t padded_rows(int64_t rows);

}  // namespace retort::models
