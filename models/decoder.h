// The decoder-only transformer of the Llama, Mistral, Qwen2 and Qwen3 families, on packed tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/config.h"
#include "models/packed.h"
#include "parallel/grad_buckets.h"

namespace retort::models {

// Parameters carry their Hugging Face names ("model.layers.0.self_attn.q_proj.weight"); a tied head has one tensor.
// Shape legend: N packed tokens, H hidden_size, V vocab_size.
// Threads: compute only. Collectives: none (tensor parallel layers arrive with the layouts).
class Decoder {
 public:
  // `tensors`: every parameter by its Hugging Face name, already in the computing dtype, ordinary (not inference) tensors.
  // kMismatch naming the first missing, superfluous or misshaped tensor.
  Decoder(ModelConfig config, std::vector<std::pair<std::string, at::Tensor>> tensors);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // Random initialisation: N(0, initializer_range) for matrices, ones for norms, zeros for biases; a pure function of
  // (config, seed), the same in every process.
  static Decoder random(ModelConfig config, uint64_t seed, at::ScalarType dtype);

  const ModelConfig& config() const;
  // [N, H] after the final norm. With autograd if the parameters require grad and grad mode is on.
  at::Tensor hidden(const PackedTokens& tokens) const;
  at::Tensor head_weight() const;  // [V, H]; the embedding when tied
  // fp32 logits [N, V] of hidden states (inputs upcast to fp32). For eval and generation; training uses the chunked losses.
  at::Tensor logits(const at::Tensor& hidden) const;

  // In a fixed order (embedding first, head last); tied head not repeated.
  std::vector<parallel::NamedParameter> parameters() const;
  void set_requires_grad(bool value);
  // Recompute each layer in backward instead of keeping its activations (Chen et al. 2016).
  void set_gradient_checkpointing(bool value);
  // How the checkpoint's weights lay on disk: 0 one file, else the data bytes of its largest shard. save_decoder keeps it.
  uint64_t shard_bytes() const;
  void set_shard_bytes(uint64_t bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::models
