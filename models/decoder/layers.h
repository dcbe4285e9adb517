// One decoder layer. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/config/config.h"
#include "models/lora/lora_dropout.h"
#include "models/lora/lora_linear.h"
#include "models/ops/attention_plan.h"
#include "models/ops/rope.h"
#include "models/ops/tensor_parallel.h"
#include "parallel/parameter.h"

namespace retort::models {

// The tensors of one layer by their Hugging Face name inside the layer ("self_attn.q_proj.weight");
// undefined where the family has none.
enum class LayerTensor : uint8_t {
  kInputNorm,
  kQ,
  kK,
  kV,
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,
  kO,
  kOBias,
  kPostNorm,  // before the MLP; with output_norms behind the attention
  kPreMlpNorm,
  kPostMlpNorm,
  kGate,
  kUp,
  kGateBias,
  kUpBias,
  kDown,
  kDownBias,
  kCount
};
const char* layer_tensor_name(LayerTensor tensor);

// An adapter's factors of one layer; undefined where a matrix is not adapted.
using LayerFactors = std::array<LoraFactors, static_cast<size_t>(LayerTensor::kCount)>;

struct LayerWeights {
  std::array<at::Tensor, static_cast<size_t>(LayerTensor::kCount)> tensors;
  // The factors of the matrices that an adapter changes, and LoraConfig::scaling().
  LayerFactors factors;
  double scaling = 1;
  const at::Tensor& operator[](LayerTensor t) const { return tensors[static_cast<size_t>(t)]; }
  at::Tensor& operator[](LayerTensor t) { return tensors[static_cast<size_t>(t)]; }
  const LoraFactors& factors_of(LayerTensor t) const { return factors[static_cast<size_t>(t)]; }
  // The defined tensors in order, then the factors.
  std::vector<at::Tensor> list() const;
  // These weights with `list` in the place of list().
  LayerWeights with(const std::vector<at::Tensor>& list) const;
};

// The weights of layer `index` with an adapter: with the factors and, in the place of their own,
// those that are trained whole, among an adapter's tensors in the order of lora_specs from `next`
// on, which is moved behind them.
LayerWeights adapted_layer(const LayerWeights& own,
                           const std::vector<parallel::NamedParameter>& tensors, int64_t index,
                           double scaling, size_t& next);

// What a layer needs besides its weights, for one forward.
struct LayerInputs {
  const ModelConfig* config;
  RopeTable rope;         // of all rows
  AttentionPlanPtr plan;  // over this rank's heads
  TensorParallel tp;
  // [S] int64: the rows that go on behind the attention, all that a last layer's reader wants;
  // undefined: all. Not with sequence parallelism.
  at::Tensor rows;
  // What adapters drop of the rows before and behind the attention.
  DropoutRows dropout{}, dropout_behind{};
};

// The residual stream as an addition that is not yet done: the norm that follows does both in one
// pass over memory.
struct Residual {
  at::Tensor sum;    // [R, H]
  at::Tensor delta;  // [R, H], undefined before the first layer
};

// [R, H], or [S, H] of inputs.rows.
Residual layer_forward(const LayerWeights& weights, const LayerInputs& inputs, const Residual& x);
// sum + delta and its norm.
std::pair<at::Tensor, at::Tensor> norm_residual(const Residual& x, const at::Tensor& weight,
                                                const ModelConfig& config);
// The residual stream after the layer, sum + delta of layer_forward. Of its activations only the
// input is kept; backward computes the layer again.
at::Tensor layer_forward_checkpointed(const LayerWeights& weights, const LayerInputs& inputs,
                                      const at::Tensor& x);

}  // namespace retort::models
