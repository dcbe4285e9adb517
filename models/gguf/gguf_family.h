// How llama.cpp calls the families, their settings and their tensors. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "models/config/config.h"
#include "models/gguf/gguf_writer.h"

namespace retort::models {

// general.architecture: "llama" for Llama and Mistral, "qwen2", "qwen3". Of families that
// check_gguf_expressible takes.
std::string gguf_architecture(Family family);

// The file's name of a tensor of the checkpoint: "model.layers.3.self_attn.q_proj.weight" is
// "blk.3.attn_q.weight". `name` is one of parameter_specs().
std::string gguf_tensor_name(const std::string& name);

// True when llama.cpp wants the rows of this tensor (of q_proj or k_proj) in another order: its
// graph for "llama" rotates the elements 2i and 2i + 1 of a head together, the checkpoint's
// i and i + head_dim / 2; "qwen2" and "qwen3" are rotated as the checkpoint is.
bool gguf_interleaves(const ModelConfig& config, const std::string& name);
// That order: [heads * head_dim, ...], row i + head_dim / 2 * k of a head becomes row 2i + k. A
// view.
at::Tensor gguf_interleave(const at::Tensor& rows, int64_t head_dim);

// The divisors of the rotary frequencies, fp32 [head_dim / 2], for the tensor
// "rope_freqs.weight"; undefined where the model needs none. Llama 3's scaling alone needs them.
at::Tensor gguf_rope_divisors(const ModelConfig& config);

// The architecture's settings. `context_length`: the tokens of a sequence that the file admits.
void add_gguf_settings(const ModelConfig& config, int64_t context_length, GgufMetadata& metadata);

// kInvalidArgument naming the key of config.json that llama.cpp's graph of this family does not
// compute: a family whose graph the export does not know, a bias of Qwen3, Llama 3's rotary scaling
// in a Qwen, heads of Qwen2 that do not divide the hidden size, a sliding window below
// `context_length`, a context of 2^31 tokens.
void check_gguf_expressible(const ModelConfig& config, int64_t context_length);

}  // namespace retort::models
