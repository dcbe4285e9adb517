// Which tensors a decoder of a given config has: their Hugging Face names, shapes and roles.
// Private to models/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "models/parameters/placement.h"
#include "parallel/parameter.h"

namespace retort::models {

enum class ParameterKind { kMatrix, kNorm, kBias };

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;  // of this rank's slice
  ParameterKind kind;
  parallel::ParameterShard shard{};
};

// The head of a sequence classifier, which is whole on every tensor-parallel rank.
inline constexpr const char* kScoreHead = "score.weight";

// The whole model, in the order of Decoder::parameters(): embedding, layers (attention before MLP),
// final norm, head unless tied.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);
// What a process holds of it, in the same order; a tied head on another stage than the embedding
// comes last, under the embedding's name. kInvalidArgument as Placement::validate.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config, const Placement& placement);

}  // namespace retort::models
