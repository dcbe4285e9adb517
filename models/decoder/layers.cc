#include "models/decoder/layers.h"

#include <ATen/TensorOperators.h>

#include <string>

#include "base/error.h"
#include "models/lora/lora_specs.h"
#include "models/ops/attention.h"
#include "models/ops/functions.h"

namespace retort::models {
namespace {

using at::Tensor;
using enum LayerTensor;

std::vector<Tensor> biases(const LayerWeights& w, std::initializer_list<LayerTensor> which) {
  std::vector<Tensor> list;
  for (LayerTensor t : which) {
    if (w[t].defined()) list.push_back(w[t]);
  }
  return list;
}

Tensor norm(const Tensor& x, const Tensor& weight, const ModelConfig& config) {
  return rms_norm(x, weight, config.rms_norm_eps, config.norm_unit_offset);
}

Tensor chosen_rows(const Tensor& x, const LayerInputs& inputs) {
  return inputs.rows.defined() ? x.index_select(0, inputs.rows) : x;
}

// Runs the column-parallel layers of one input together, with the adapter of each if it has one.
std::vector<Tensor> column_layers(const LayerWeights& w, const LayerInputs& inputs, const Tensor& x,
                                  std::initializer_list<LayerTensor> matrices,
                                  std::initializer_list<LayerTensor> their_biases,
                                  const DropoutRows& dropout) {
  std::vector<Tensor> weights;
  std::vector<LoraFactors> factors;
  bool adapted = false;
  for (const LayerTensor matrix : matrices) {
    weights.push_back(w[matrix]);
    factors.push_back(w.factors_of(matrix));
    adapted = adapted || factors.back().defined();
  }
  if (!adapted) return column_linear(x, weights, biases(w, their_biases), inputs.tp);
  return adapted_column_linear(x, weights, biases(w, their_biases), factors, w.scaling, inputs.tp,
                               dropout);
}

// Runs a row-parallel layer likewise.
Tensor row_layer(const LayerWeights& w, const LayerInputs& inputs, const Tensor& x,
                 LayerTensor matrix, LayerTensor bias) {
  const LoraFactors& factors = w.factors_of(matrix);
  if (!factors.defined()) return row_linear(x, w[matrix], w[bias], inputs.tp);
  return adapted_row_linear(x, w[matrix], w[bias], factors, w.scaling, inputs.tp,
                            inputs.dropout_behind);
}

Tensor attention_block(const LayerWeights& w, const LayerInputs& inputs, const Tensor& x) {
  const std::vector<Tensor> qkv =
      column_layers(w, inputs, x, {kQ, kK, kV}, {kQBias, kKBias, kVBias}, inputs.dropout);
  const HeadNorms norms{.q = w[kQNorm],
                        .k = w[kKNorm],
                        .eps = inputs.config->rms_norm_eps,
                        .unit_offset = inputs.config->norm_unit_offset};
  const Tensor y = packed_attention(qkv[0], qkv[1], qkv[2], norms, inputs.rope, inputs.plan);
  return row_layer(w, inputs, chosen_rows(y, inputs), kO, kOBias);
}

Tensor mlp_block(const LayerWeights& w, const LayerInputs& inputs, const Tensor& x) {
  const std::vector<Tensor> both =
      column_layers(w, inputs, x, {kGate, kUp}, {kGateBias, kUpBias}, inputs.dropout_behind);
  return row_layer(w, inputs, gated(both[0], both[1], inputs.config->activation), kDown, kDownBias);
}

}  // namespace

const char* layer_tensor_name(LayerTensor tensor) {
  switch (tensor) {
    case kInputNorm: return "input_layernorm.weight";
    case kQ: return "self_attn.q_proj.weight";
    case kK: return "self_attn.k_proj.weight";
    case kV: return "self_attn.v_proj.weight";
    case kQBias: return "self_attn.q_proj.bias";
    case kKBias: return "self_attn.k_proj.bias";
    case kVBias: return "self_attn.v_proj.bias";
    case kQNorm: return "self_attn.q_norm.weight";
    case kKNorm: return "self_attn.k_norm.weight";
    case kO: return "self_attn.o_proj.weight";
    case kOBias: return "self_attn.o_proj.bias";
    case kPostNorm: return "post_attention_layernorm.weight";
    case kPreMlpNorm: return "pre_feedforward_layernorm.weight";
    case kPostMlpNorm: return "post_feedforward_layernorm.weight";
    case kGate: return "mlp.gate_proj.weight";
    case kUp: return "mlp.up_proj.weight";
    case kGateBias: return "mlp.gate_proj.bias";
    case kUpBias: return "mlp.up_proj.bias";
    case kDown: return "mlp.down_proj.weight";
    case kDownBias: return "mlp.down_proj.bias";
    case kCount: break;
  }
  return "";
}

LayerWeights adapted_layer(const LayerWeights& own,
                           const std::vector<parallel::NamedParameter>& tensors, int64_t index,
                           double scaling, size_t& next) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  LayerWeights weights = own;
  weights.scaling = scaling;
  LoraFactors before;  // the A of the B's that follow it, and its place
  for (; next < tensors.size() && tensors[next].name.starts_with(prefix); ++next) {
    const auto& [name, value, shard] = tensors[next];
    if (name.ends_with(".lora_A.weight"))
      before = {.a = value, .b = {}, .place = {.column = shard.dim == 1 ? shard.begin : 0}};
    for (size_t t = 0; t < weights.tensors.size(); ++t) {
      const std::string matrix = prefix + layer_tensor_name(static_cast<LayerTensor>(t));
      if (name == matrix) weights.tensors[t] = value;
      if (name != lora_factor_name(matrix, "lora_B")) continue;
      // The first matrix of an A gives the A its module number, from which dropout draws.
      if (before.place.module == 0)
        before.place.module = static_cast<uint64_t>(index) * weights.tensors.size() + t + 1;
      weights.factors[t] = {before.a, value, before.place};
    }
  }
  return weights;
}

std::vector<Tensor> LayerWeights::list() const {
  std::vector<Tensor> list;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) list.push_back(tensor);
  }
  Tensor shared;  // an A that several matrices share is listed once
  for (const LoraFactors& one : factors) {
    if (!one.defined()) continue;
    if (!one.a.is_same(shared)) list.push_back(one.a);
    list.push_back(one.b);
    shared = one.a;
  }
  return list;
}

LayerWeights LayerWeights::with(const std::vector<Tensor>& list) const {
  // The order is that of list(), where an A that several matrices share comes once.
  LayerWeights weights = *this;
  size_t next = 0;
  for (Tensor& tensor : weights.tensors) {
    if (tensor.defined()) tensor = list[next++];
  }
  Tensor shared, its_place;
  for (LoraFactors& one : weights.factors) {
    if (!one.defined()) continue;
    if (!one.a.is_same(shared)) its_place = list[next++];
    shared = one.a;
    one.a = its_place;
    one.b = list[next++];
  }
  RETORT_CHECK(next == list.size())
      << "a layer of " << next << " tensors was given " << list.size();
  return weights;
}

std::pair<Tensor, Tensor> norm_residual(const Residual& x, const Tensor& weight,
                                        const ModelConfig& config) {
  if (!x.delta.defined()) return {x.sum, norm(x.sum, weight, config)};
  return add_rms_norm(x.sum, x.delta, weight, config.rms_norm_eps, config.norm_unit_offset);
}

Residual layer_forward(const LayerWeights& weights, const LayerInputs& inputs, const Residual& x) {
  const ModelConfig& config = *inputs.config;
  const auto [before, normed] = norm_residual(x, weights[kInputNorm], config);

  // Gemma norms what a block returns before it is added. There kPostNorm is that norm, and the MLP
  // has a norm of its own before it; elsewhere kPostNorm is the norm before the MLP.
  Tensor attended = attention_block(weights, inputs, normed);
  if (config.output_norms) attended = norm(attended, weights[kPostNorm], config);
  const auto [after, normed_after] =
      norm_residual({chosen_rows(before, inputs), attended},
                    weights[config.output_norms ? kPreMlpNorm : kPostNorm], config);
  const Tensor mlp = mlp_block(weights, inputs, normed_after);
  return {after, config.output_norms ? norm(mlp, weights[kPostMlpNorm], config) : mlp};
}

Tensor layer_forward_checkpointed(const LayerWeights& weights, const LayerInputs& inputs,
                                  const Tensor& x) {
  // Autograd sees the weights as arguments of the body, so that their gradients are found when
  // backward runs it again.
  const LayerBody body = [weights, inputs](const Tensor& input,
                                           const std::vector<Tensor>& parameters) {
    const Residual y = layer_forward(weights.with(parameters), inputs, {input, {}});
    return y.sum + y.delta;
  };
  return checkpointed(body, x, weights.list());
}

}  // namespace retort::models
