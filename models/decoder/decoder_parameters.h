// The parameters of a decoder: taken from given tensors, or random. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/config/config.h"
#include "models/lora/lora_config.h"
#include "models/parameters/parameter_specs.h"
#include "models/parameters/placement.h"
#include "parallel/parameter.h"

namespace retort::models {

using NamedTensorList = std::vector<std::pair<std::string, at::Tensor>>;

// `tensors` in the order of Decoder::parameters(). kMismatch as the constructor of Decoder says.
std::vector<parallel::NamedParameter> match_parameters(const ModelConfig& config,
                                                       const Placement& placement,
                                                       const NamedTensorList& tensors);

// The same of any list of tensors, in its order. `what` they belong to: "model".
std::vector<parallel::NamedParameter> match_specs(const std::vector<ParameterSpec>& specs,
                                                  const NamedTensorList& tensors,
                                                  const std::string& what);

// An adapter's tensors in the order of lora_specs. kMismatch for those and for another dtype or
// device than the decoder's.
std::vector<parallel::NamedParameter> match_adapter(const ModelConfig& config,
                                                    const LoraConfig& lora,
                                                    const Placement& placement,
                                                    const NamedTensorList& tensors,
                                                    at::ScalarType dtype, at::Device device);

// As Decoder::random says. Not in inference mode: the tensors are to be trained.
NamedTensorList random_parameters(const ModelConfig& config, const Placement& placement,
                                  uint64_t seed, at::ScalarType dtype, at::Device device);

// The head of a sequence classifier as Decoder::random would make it: [labels, H].
at::Tensor random_head(const ModelConfig& config, uint64_t seed, at::ScalarType dtype,
                       at::Device device);

}  // namespace retort::models
