// What a decoder has inside. Private to models/decoder.cc and models/decoder_adapter.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "models/decoder.h"
#include "models/layers.h"
#include "models/lora/lora_dropout.h"
#include "models/rope.h"
#include "models/tensor_parallel.h"

namespace retort::models {

struct Decoder::Impl {
  // A layer and what is trained of it, [begin, end) of trained_parameters().
  struct Layer {
    LayerWeights weights;     // of AdapterState::kTrained
    LayerWeights own, first;  // beside an adapter: of kNone and kFirst
    size_t begin = 0;
    size_t end = 0;
    int64_t index = 0;  // in the whole model
    int64_t window = 0;
  };

  // What stands before and behind the layers.
  struct Ends {
    at::Tensor embedding, final_norm, head;
  };

  ModelConfig config;
  Placement placement;
  TensorParallel tp;
  std::vector<parallel::NamedParameter> parameters;
  Ends ends, own_ends, first_ends;  // as Layer
  std::vector<std::vector<Layer>> chunks;
  // Of trained_parameters(), those before the layers, and where those behind them begin.
  size_t before_layers = 0, after_layers = 0;
  RotaryEmbedding rope;
  std::optional<RotaryEmbedding> sliding_rope;  // of layers with a window, if they have their own
  std::optional<LoraConfig> lora;
  std::vector<parallel::NamedParameter> adapter;
  std::vector<parallel::NamedParameter> first_adapter;
  AdapterState adapter_state = AdapterState::kTrained;
  double dropout = 0;
  uint64_t dropout_seed = 0;
  uint64_t dropout_step = 0;
  ParameterGate gate;
  int64_t checkpointing_every = 0;  // 0: never
  uint64_t shard_bytes = 0;

  at::Device device() const { return parameters.front().value.device(); }
  void bind();
  void bind_layer(int64_t layer, size_t& next, Layer& out) const;
  void bind_adapter();
  void bind_first_adapter();
  const LayerWeights& weights_of(const Layer& layer) const;
  const Ends& ends_of_state() const;
  parallel::VocabShard vocab() const;
  int64_t padded_tokens(const PackedTokens& tokens) const;
  at::Tensor embed(const PackedTokens& tokens) const;
  HeadShape head_shape() const;
  bool recomputes(const Layer& layer) const;
  DropoutRows dropout_of(const PackedTokens& tokens) const;
  at::Tensor forward(int64_t chunk, const PackedTokens& tokens, const at::Tensor& input) const;
};

}  // namespace retort::models
