// The three matrix products of a linear layer, without autograd: what layers and heads are made of.
// The two of backward also as products that add to a sum.
#pragma once

#include <ATen/core/Tensor.h>

namespace retort::parallel {

// fp32 products on the CPU go to oneDNN where it is the faster one, the others, small ones and
// other dtypes and devices to ATen. On one core of an AMD EPYC with AVX-512, in GFLOP/s for
// LibTorch's BLAS and oneDNN: forward 88 and 102, gradient of the input 93 and 105, gradient of the
// weight 95 and 86 for layers 320 to 896 wide, 88 and 97 for layers 1,024 wide.
//
// oneDNN compiles a kernel for each new shape (about 3 ms), so callers keep the number of different
// row counts small: see padded_rows().

// x w^T + b
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// g w
at::Tensor linear_grad_input(const at::Tensor& grad, const at::Tensor& weight);
// g^T x
at::Tensor linear_grad_weight(const at::Tensor& grad, const at::Tensor& x);

// sum += g w; an undefined sum becomes the product. On a device one product that adds, which rounds
// once.
void add_grad_input(at::Tensor& sum, const at::Tensor& grad, const at::Tensor& weight);
// Adds g^T x to the sum of the weight's gradients, if it has one (gradient_sink.h) and both factors
// are bfloat16 on a device, which has the product with a float32 result. False: nothing is done.
bool add_grad_weight(const at::Tensor& weight, const at::Tensor& grad, const at::Tensor& x);

// The row count that `rows` is rounded up to before products on such a device. On the CPU packs of
// ever different lengths share their compiled kernels so. Elsewhere it is `rows`: no kernel is
// compiled for a shape there, and what is padded costs copies, and cuts in each gradient.
int64_t padded_rows(int64_t rows, at::DeviceType device);

}  // namespace retort::parallel
