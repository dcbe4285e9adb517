// Which tensors an adapter of a decoder has: names, shapes, and how they are spread. Private to
// models/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "models/lora/lora_config.h"
#include "models/parameters/checkpoint_tensor.h"
#include "models/parameters/parameter_specs.h"
#include "models/parameters/placement.h"

namespace retort::models {

// "model.layers.0.self_attn.q_proj.weight" -> "q_proj"; of any parameter.
std::string module_of(const std::string& parameter);
// "...q_proj.weight", "lora_A" -> "...q_proj.lora_A.weight"; "" of what is no weight.
std::string lora_factor_name(const std::string& parameter, const char* factor);
// The layer of a name that begins with "model.layers.N."; -1: it begins otherwise.
int64_t layer_of(const std::string& parameter);
// Which linear layer of the model's files a parameter is, or is some rows of:
// "model.layers.0.self_attn.qkv_proj"; "" of what is no matrix of a layer.
std::string lora_module(const ModelConfig& config, const ParameterSpec& parameter);

// A's and B's of the placement's layers, in the order of Decoder::parameters(), A before B:
// "model.layers.0.self_attn.q_proj.lora_A.weight". Of what the model's files hold fused there is
// one A, named as in the files and before the first of its B's, and of each matrix the rows of B
// that are its own: qkv_proj.lora_A, q_proj.lora_B, k_proj.lora_B, v_proj.lora_B.
//
// Parameters that are trained whole (saved_parameters) stand among them under their own names, and
// are spread as in the model.
//
// Tensor parallelism, with W column-parallel [out/n, in]: A is whole on every rank, whose gradient
// is a part (of its rows of B), and B is split like W. With W row-parallel [out, in/n]: A is split
// like W, and B is whole, its gradient a part, of the rank's share of x A^T.
std::vector<ParameterSpec> lora_specs(const ModelConfig& config, const LoraConfig& lora,
                                      const Placement& placement);

// The tensor of an adapter's files that a factor of `config` with that whole shape is, or is some
// rows of.
CheckpointTensor adapter_tensor(const ModelConfig& config, const std::string& factor,
                                const std::vector<int64_t>& shape);

}  // namespace retort::models
