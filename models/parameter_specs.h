// Which tensors a decoder of a given config has: their Hugging Face names, shapes and roles. Private to models/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config.h"

namespace retort::models {

enum class ParameterKind { kMatrix, kNorm, kBias };

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  ParameterKind kind;
};

// In the order of Decoder::parameters(): embedding, layers (attention before MLP), final norm, head unless tied.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);

}  // namespace retort::models
