// The products of a linear head: logits, and what a gradient by the logits becomes of the hidden
// states and the weight.
//
// In float32, for which hidden states and weight are converted; but of bfloat16 hidden states and
// weight on a device in bfloat16 with float32 sums, which is what its matrix units compute: the
// logits are float32 and those of the converted factors but for the order of the sums, the gradient
// by the logits is rounded to bfloat16 before its two products. Then the weight is never copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace retort::losses::detail {

// Rows of a large product come in whole multiples of this (parallel/gemm.h).
inline constexpr int64_t kRowQuantum = 64;

// [count, V] = inputs * weight^T (+ bias), all float32, contiguous.
at::Tensor form_logits(const at::Tensor& inputs, const at::Tensor& weight, const at::Tensor& bias);

// Memory: V*H*4 bytes for a weight that is converted, none for float32, or bfloat16 on a device.
class HeadProducts {
 public:
  // hidden [R, H], weight [V, H], bias [V] or undefined, of float dtypes on one device; softcap as
  // LinearHead::softcap.
  HeadProducts(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
               double softcap = 0);

  // True if the products are those of bfloat16 on a device.
  bool in_bfloat16() const { return in_bfloat16_; }

  // Rows [begin, begin + count) of hidden, as a factor of the products.
  at::Tensor rows(int64_t begin, int64_t count) const;
  // [count, V] float32 of those rows. With a softcap `slopes`, unless null, becomes their
  // derivatives by the products, [count, V].
  at::Tensor logits(const at::Tensor& rows, at::Tensor* slopes = nullptr) const;

  // A gradient by the logits [count, V] float32 as a factor: itself, or count*V*2 bytes more.
  at::Tensor factor(const at::Tensor& gradient) const;
  // out [count, H] of any dtype = gradient * weight, times row_weights [count, 1] unless these
  // are undefined.
  void write_hidden_gradient(at::Tensor out, const at::Tensor& factor,
                             const at::Tensor& row_weights) const;
  // out [V, H] float32 += gradient^T * rows, or out = that for the first chunk.
  void add_weight_gradient(at::Tensor out, const at::Tensor& factor, const at::Tensor& rows,
                           bool first) const;

 private:
  // The products before the softcap.
  at::Tensor products(const at::Tensor& rows, const at::Tensor& bias) const;

  bool in_bfloat16_;
  double softcap_;
  at::Tensor hidden_;
  at::Tensor weight_;  // as a factor
  at::Tensor bias_;    // float32
};

}  // namespace retort::losses::detail
