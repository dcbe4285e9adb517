// The decoder-only transformer of the Llama, Mistral, Qwen2, Qwen3, Phi-3 and Gemma 2 and 3
// families, on packed tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/config/config.h"
#include "models/lora/lora_config.h"
#include "models/ops/packed.h"
#include "models/parameters/placement.h"
#include "parallel/parameter.h"
#include "parallel/vocab_shard.h"

namespace retort::models {

// What turns hidden states into logits: this rank's rows of the vocabulary; of a sequence
// classifier (models/decoder/sequence_scores.h) all of its labels on every rank.
struct Head {
  at::Tensor weight;  // [rows, H]
  parallel::VocabShard vocab;
  double softcap = 0;                 // c > 0: logits are c tanh(x / c) of the products x
  parallel::Group* copies = nullptr;  // of a classifier: the ranks that have the same weight
};

// Which state of its adapter a decoder computes with: the one that is trained, the one that
// training began with, or none.
enum class AdapterState { kTrained, kFirst, kNone };

// This process's part of a model: all of it, or by `placement` a slice of each layer and one or
// several runs of the layers. Parameters carry their Hugging Face names
// ("model.layers.0.self_attn.q_proj.weight"); a tied head has one tensor.
// Shapes: N packed tokens, H hidden_size, V vocab_size, R rows of the residual stream on this rank.
// R is N, rounded up on the CPU (padded_rows in parallel/gemm.h); with sequence parallelism it is
// the rank's equal share of that, rounded up to a multiple of tp.
// Collectives: on the placement's tp group only; every member calls forward and hidden with the
// same tokens. In a forward pass two all-reduces of [R, H] a layer and one for the embedding, in
// backward two a layer and one for the final hidden states; with sequence parallelism
// reduce-scatters and all-gathers in their place (models/ops/tensor_parallel.h).
// Threads: compute only.
class Decoder {
 public:
  // `tensors`: every parameter of the placement by its Hugging Face name, already in the computing
  // dtype, ordinary (not inference) tensors. kMismatch naming the first missing, superfluous or
  // misshaped tensor.
  Decoder(ModelConfig config, std::vector<std::pair<std::string, at::Tensor>> tensors,
          Placement placement = {});
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // Random initialisation: N(0, initializer_range) for matrices, ones for norms, zeros for biases;
  // a pure function of (config, seed), the same in every process and for every placement.
  static Decoder random(ModelConfig config, uint64_t seed, at::ScalarType dtype,
                        Placement placement = {}, at::Device device = at::kCPU);

  const ModelConfig& config() const;  // of the whole model
  const Placement& placement() const;
  // The whole depth, for a placement without pipeline stages: [N, H] after the final norm, or of
  // the rows `tokens.wanted` alone, [R, H] in their order; the same on every tp rank. With autograd
  // if the parameters require grad and grad mode is on: a caller returns the gradient that its rows
  // of the head contribute, and backward sums it over tp.
  at::Tensor hidden(const PackedTokens& tokens) const;
  // One chunk of a pipeline stage. `input`: the residual stream [R, H] that the chunk before
  // returned; undefined for the first chunk. Returns the residual stream [R, H]; the last chunk
  // returns what hidden() does.
  at::Tensor forward(int64_t chunk, const PackedTokens& tokens, const at::Tensor& input) const;
  // R of the shapes above, for `tokens`.
  int64_t residual_rows(const PackedTokens& tokens) const;
  // On the last pipeline stage only. The weight is the embedding when tied.
  Head head() const;
  // head().weight, for callers that know no softcap: kInvalidArgument naming
  // final_logit_softcapping for a model that has one.
  at::Tensor head_weight() const;
  // fp32 logits [N, V] of hidden states (inputs upcast to fp32) of a model in one piece. For eval
  // and generation; training uses the chunked losses.
  at::Tensor logits(const at::Tensor& hidden) const;

  // In a fixed order (embedding first, head last); tied head not repeated. Without an adapter.
  std::vector<parallel::NamedParameter> parameters() const;

  // LoRA: from now on linear layers compute with their factors besides (models/checkpoint/adapter.h
  // makes them, models/decoder/merged_weights.h adds them to the weights), what modules_to_save
  // name is computed with as the adapter has it, and these alone are trained. `tensors`: all of
  // lora_specs by name, in the decoder's dtype. kMismatch as the constructor.
  void attach_adapter(const LoraConfig& lora,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors);
  // The state that an adapter's training begins with, kept beside the trained one: never trained,
  // saved or merged. `tensors` as attach_adapter's, of an adapter that is there, with its settings.
  void attach_first_adapter(const std::vector<std::pair<std::string, at::Tensor>>& tensors);
  bool has_first_adapter() const;
  void detach_adapter();           // both states
  const LoraConfig* lora() const;  // null: no adapter
  // What forward passes compute with from now on, which must be there.
  void use_adapter(AdapterState state);
  // From now on what an adapter reads in forward passes with autograd, in its trained state, has a
  // share lora_dropout of its elements dropped: a function of `seed` and of the step that is set
  // (models/lora/lora_dropout.h). lora() says so too. Without a call nothing is dropped, whatever
  // the adapter's files say.
  void set_adapter_dropout(double lora_dropout, uint64_t seed);
  void set_dropout_step(uint64_t step);
  // What is trained, in a fixed order: the adapter's factors, or parameters().
  std::vector<parallel::NamedParameter> trained_parameters() const;

  at::ScalarType dtype() const;
  // The device of the parameters. Tokens on another device are copied there.
  at::Device device() const;
  // Applies to trained_parameters(); what stands beside an adapter requires no gradient.
  void set_requires_grad(bool value);
  // Recompute layers in backward instead of keeping their activations (Chen et al. 2016): every
  // layer, or those of the whole model whose number `every` divides. The same bits either way.
  void set_gradient_checkpointing(bool value, int64_t every = 1);
  // Called in a forward pass before [begin, end) of trained_parameters() are read; it returns
  // when their values have arrived. Empty: they are always there.
  using ParameterGate = std::function<void(size_t begin, size_t end)>;
  void set_parameter_gate(ParameterGate gate);
  // How the weights of the checkpoint were stored: 0 in one file, else in shards of at most this
  // many data bytes. save_decoder writes them likewise.
  uint64_t shard_bytes() const;
  void set_shard_bytes(uint64_t bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::models
