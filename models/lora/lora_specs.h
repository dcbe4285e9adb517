// Which tensors an adapter of a decoder has: names, shapes, and how they are spread. Private to
// models/.
#pragma once

#include <string>
#include <vector>

#include "models/config.h"
#include "models/lora/lora_config.h"
#include "models/parameter_specs.h"
#include "models/placement.h"

namespace retort::models {

// "model.layers.0.self_attn.q_proj.weight" -> "q_proj"; of any parameter.
std::string module_of(const std::string& parameter);
// "...q_proj.weight", "lora_A" -> "...q_proj.lora_A.weight"; "" of what is no weight.
std::string lora_factor_name(const std::string& parameter, const char* factor);

// A's and B's of the placement's layers, in the order of Decoder::parameters(), A before B:
// "model.layers.0.self_attn.q_proj.lora_A.weight".
//
// Tensor parallelism, with W column-parallel [out/n, in]: A is whole on every rank, whose gradient
// is a part (of its rows of B), and B is split like W. With W row-parallel [out, in/n]: A is split
// like W, and B is whole, its gradient a part, of the rank's share of x A^T.
std::vector<ParameterSpec> lora_specs(const ModelConfig& config, const LoraConfig& lora,
                                      const Placement& placement);

}  // namespace retort::models
