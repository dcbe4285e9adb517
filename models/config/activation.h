// What the gate of an MLP passes through.
#pragma once

#include <cstdint>

namespace retort::models {

enum class Activation : uint8_t {
  kSilu,      // g sigmoid(g)
  kGeluTanh,  // GELU by its tanh formula, transformers' gelu_pytorch_tanh
};

}  // namespace retort::models
