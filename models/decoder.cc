#include "models/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <sstream>

#include "base/error.h"
#include "base/random.h"
#include "models/functions.h"
#include "models/gemm.h"
#include "models/layers.h"
#include "models/parameter_specs.h"

namespace retort::models {
namespace {

using at::Tensor;

std::string shape_text(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

void check_tokens(const PackedTokens& tokens, int64_t vocab_size) {
  const std::vector<int64_t>& cu = tokens.cu_seqlens;
  auto fail = [](const std::string& what) -> Error { return Error(ErrorCode::kInvalidArgument, "packed tokens: " + what); };
  if (cu.empty() || cu.front() != 0 || !std::is_sorted(cu.begin(), cu.end())) {
    throw fail("cu_seqlens must start with 0 and not decrease");
  }
  if (tokens.input_ids.dim() != 1 || tokens.input_ids.scalar_type() != at::kLong || tokens.input_ids.size(0) != cu.back()) {
    throw fail("input_ids must be int64 of shape [" + std::to_string(cu.back()) + "], as cu_seqlens ends");
  }
  if (!tokens.input_ids.is_cpu()) return;
  const Tensor ids = tokens.input_ids.contiguous();
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i) {
    if (id[i] < 0 || id[i] >= vocab_size) {
      throw fail("a token id lies outside the vocabulary").with("index", i).with("id", id[i]).with("vocab_size", vocab_size);
    }
  }
}

// N(0, std) from the counter-based generator (Box-Muller), element i of tensor `index`.
Tensor random_normal(const std::vector<int64_t>& shape, double std, uint64_t seed, uint64_t index) {
  Tensor tensor = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  auto* out = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); i += 2) {
    const auto at = static_cast<uint64_t>(i);
    const double radius = std * std::sqrt(-2.0 * std::log(random_uniform(seed, index, at)));
    const double angle = 2.0 * std::numbers::pi * random_uniform(seed, index, at + 1);
    out[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < tensor.numel()) out[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return tensor;
}

}  // namespace

struct Decoder::Impl {
  ModelConfig config;
  std::vector<parallel::NamedParameter> parameters;
  Tensor embedding, final_norm, head;
  std::vector<LayerWeights> layers;
  Tensor inverse_frequencies;
  bool checkpointing = false;
  uint64_t shard_bytes = 0;

  void bind();
  const Tensor& find(const std::string& name) const;
  Tensor forward(const PackedTokens& tokens) const;
};

const Tensor& Decoder::Impl::find(const std::string& name) const {
  static const Tensor undefined;
  for (const parallel::NamedParameter& parameter : parameters) {
    if (parameter.name == name) return parameter.value;
  }
  return undefined;
}

// Points the layers at the parameters' tensors.
void Decoder::Impl::bind() {
  embedding = find("model.embed_tokens.weight");
  final_norm = find("model.norm.weight");
  head = config.tie_word_embeddings ? embedding : find("lm_head.weight");
  std::map<std::string, Tensor> by_name;
  for (const parallel::NamedParameter& parameter : parameters) by_name[parameter.name] = parameter.value;
  layers.assign(static_cast<size_t>(config.num_hidden_layers), {});
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (size_t t = 0; t < static_cast<size_t>(LayerTensor::kCount); ++t) {
      const auto which = static_cast<LayerTensor>(t);
      const auto it = by_name.find("model.layers." + std::to_string(layer) + "." + layer_tensor_name(which));
      if (it != by_name.end()) layers[layer][which] = it->second;
    }
  }
  inverse_frequencies = rope_inverse_frequencies(config.rope, config.head_dim).to(embedding.device());
}

Tensor Decoder::Impl::forward(const PackedTokens& tokens) const {
  const int64_t count = tokens.num_tokens(), padding = padded_rows(count) - count;
  Residual x{at::embedding(embedding, tokens.input_ids, config.pad_token_id), {}};
  Tensor padded_positions = tokens.positions;
  if (padding > 0) {  // zero rows: they stay apart from every sequence and are cut off below
    x.sum = at::constant_pad_nd(x.sum, {0, 0, 0, padding});
    padded_positions = at::constant_pad_nd(tokens.positions, {0, padding});
  }
  const HeadShape shape{config.num_attention_heads, config.num_key_value_heads, config.head_dim};
  std::map<int64_t, AttentionPlanPtr> plans;
  LayerInputs inputs{&config, rope_table(padded_positions, inverse_frequencies), {}};
  for (size_t i = 0; i < layers.size(); ++i) {
    AttentionPlanPtr& plan = plans[config.sliding_window[i]];
    if (!plan) {
      plan = c10::make_intrusive<AttentionPlan>(shape, tokens.cu_seqlens, tokens.forks, config.sliding_window[i],
                                                embedding.options());
    }
    inputs.plan = plan;
    if (checkpointing && c10::GradMode::is_enabled()) {
      x = {layer_forward_checkpointed(layers[i], inputs, x.sum), {}};
    } else {
      x = layer_forward(layers[i], inputs, x);
    }
  }
  const Tensor out = norm_residual(x, final_norm, config.rms_norm_eps).second;
  return padding > 0 ? out.narrow(0, 0, count) : out;
}

Decoder::Decoder(ModelConfig config, std::vector<std::pair<std::string, Tensor>> tensors) : impl_(std::make_unique<Impl>()) {
  impl_->config = std::move(config);
  std::map<std::string, Tensor> given;
  for (auto& [name, tensor] : tensors) {
    if (!given.emplace(name, tensor).second) throw Error(ErrorCode::kMismatch, "a parameter is given twice").with("tensor", name);
  }
  at::ScalarType dtype = at::kFloat;
  for (const ParameterSpec& spec : parameter_specs(impl_->config)) {
    const auto it = given.find(spec.name);
    if (it == given.end())
      throw Error(ErrorCode::kMismatch, "the model's tensor '" + spec.name + "' is missing").with("tensor", spec.name);
    Tensor value = it->second;
    if (value.sizes() != at::IntArrayRef(spec.shape)) {
      throw Error(ErrorCode::kMismatch, "tensor '" + spec.name + "' has shape " + shape_text(value.sizes()) +
                                            ", the config asks for " + shape_text(spec.shape))
          .with("tensor", spec.name);
    }
    if (impl_->parameters.empty()) dtype = value.scalar_type();
    if (value.scalar_type() != dtype || !at::isFloatingType(dtype)) {
      throw Error(ErrorCode::kMismatch, "the parameters must share one floating dtype").with("tensor", spec.name);
    }
    RETORT_CHECK(!value.is_inference()) << spec.name << " is an inference tensor";
    impl_->parameters.push_back({spec.name, value.contiguous()});
    given.erase(it);
  }
  if (!given.empty()) {
    throw Error(ErrorCode::kMismatch, "tensor '" + given.begin()->first + "' does not belong to this model")
        .with("tensor", given.begin()->first);
  }
  impl_->bind();
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Decoder Decoder::random(ModelConfig config, uint64_t seed, at::ScalarType dtype) {
  const c10::InferenceMode ordinary(false);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    Tensor value;
    const auto options = at::TensorOptions().dtype(at::kFloat);
    switch (spec.kind) {
      case ParameterKind::kMatrix: value = random_normal(spec.shape, config.initializer_range, seed, tensors.size()); break;
      case ParameterKind::kNorm: value = at::ones(spec.shape, options); break;
      case ParameterKind::kBias: value = at::zeros(spec.shape, options); break;
    }
    tensors.emplace_back(spec.name, value.to(dtype));
  }
  return Decoder(std::move(config), std::move(tensors));
}

const ModelConfig& Decoder::config() const { return impl_->config; }

Tensor Decoder::hidden(const PackedTokens& tokens) const {
  check_tokens(tokens, impl_->config.vocab_size);
  if (tokens.positions.dim() != 1 || tokens.positions.size(0) != tokens.num_tokens()) {
    throw Error(ErrorCode::kInvalidArgument, "packed tokens: positions must have the shape of input_ids");
  }
  return impl_->forward(tokens);
}

Tensor Decoder::head_weight() const { return impl_->head; }

Tensor Decoder::logits(const Tensor& hidden) const {
  const Tensor x = hidden.to(at::kFloat);
  if (impl_->head.scalar_type() == at::kFloat) return row_linear(x, impl_->head, {});
  constexpr int64_t kChunk = 8192;  // rows of the head that are upcast at once
  std::vector<Tensor> parts;
  for (int64_t row = 0; row < impl_->head.size(0); row += kChunk) {
    const int64_t count = std::min(kChunk, impl_->head.size(0) - row);
    parts.push_back(row_linear(x, impl_->head.narrow(0, row, count).to(at::kFloat), {}));
  }
  return at::cat(parts, 1);
}

std::vector<parallel::NamedParameter> Decoder::parameters() const { return impl_->parameters; }

void Decoder::set_requires_grad(bool value) {
  for (parallel::NamedParameter& parameter : impl_->parameters) parameter.value.set_requires_grad(value);
}

void Decoder::set_gradient_checkpointing(bool value) { impl_->checkpointing = value; }
uint64_t Decoder::shard_bytes() const { return impl_->shard_bytes; }
void Decoder::set_shard_bytes(uint64_t bytes) { impl_->shard_bytes = bytes; }

}  // namespace retort::models
