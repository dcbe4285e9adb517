// Attention scores and logits that are capped (Gemma 2).
#pragma once

#include <ATen/core/Tensor.h>

namespace retort::models {

// cap tanh(x / cap), with autograd; x itself for a cap of 0.
inline at::Tensor softcapped(const at::Tensor& x, double cap) {
  return cap > 0 ? x.div(cap).tanh().mul(cap) : x;
}

}  // namespace retort::models
