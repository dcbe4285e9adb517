#include "models/decoder/decoder_parameters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <map>
#include <numbers>
#include <sstream>

#include "base/error.h"
#include "base/random.h"
#include "models/lora/lora_specs.h"
#include "models/parameters/parameter_specs.h"

namespace retort::models {
namespace {

using at::Tensor;

std::string shape_text(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

std::map<std::string, Tensor> by_name(const std::vector<std::pair<std::string, Tensor>>& tensors) {
  std::map<std::string, Tensor> given;
  for (const auto& [name, tensor] : tensors) {
    if (!given.emplace(name, tensor).second)
      throw Error(ErrorCode::kMismatch, "a parameter is given twice").with("tensor", name);
  }
  return given;
}

Tensor take_tensor(std::map<std::string, Tensor>& given, const ParameterSpec& spec,
                   const std::string& what) {
  const auto it = given.find(spec.name);
  if (it == given.end())
    throw Error(ErrorCode::kMismatch, "the " + what + "'s tensor '" + spec.name + "' is missing")
        .with("tensor", spec.name);
  Tensor value = it->second;
  if (value.sizes() != at::IntArrayRef(spec.shape)) {
    throw Error(ErrorCode::kMismatch, "tensor '" + spec.name + "' has shape " +
                                          shape_text(value.sizes()) + ", expected here " +
                                          shape_text(spec.shape))
        .with("tensor", spec.name);
  }
  given.erase(it);
  return value;
}

// Draws N(0, std) from the counter-based generator (Box-Muller): element i of tensor `index`.
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

std::vector<parallel::NamedParameter> match_parameters(const ModelConfig& config,
                                                       const Placement& placement,
                                                       const NamedTensorList& tensors) {
  return match_specs(parameter_specs(config, placement), tensors, "model");
}

std::vector<parallel::NamedParameter> match_specs(const std::vector<ParameterSpec>& specs,
                                                  const NamedTensorList& tensors,
                                                  const std::string& what) {
  std::vector<parallel::NamedParameter> parameters;
  std::map<std::string, Tensor> given = by_name(tensors);

  // Every tensor of the placement must be there, in its shape and in the dtype of the first.
  at::ScalarType dtype = at::kFloat;
  for (const ParameterSpec& spec : specs) {
    const Tensor value = take_tensor(given, spec, what);
    if (parameters.empty()) dtype = value.scalar_type();
    if (value.scalar_type() != dtype || !at::isFloatingType(dtype)) {
      throw Error(ErrorCode::kMismatch, "the parameters must share one floating dtype")
          .with("tensor", spec.name);
    }
    RETORT_CHECK(!value.is_inference()) << spec.name << " is an inference tensor";
    parameters.push_back({spec.name, value.contiguous(), spec.shard});
  }

  // No other tensor may be there.
  if (!given.empty()) {
    throw Error(ErrorCode::kMismatch,
                "tensor '" + given.begin()->first + "' does not belong to this " + what)
        .with("tensor", given.begin()->first);
  }
  return parameters;
}

std::vector<parallel::NamedParameter> match_adapter(const ModelConfig& config,
                                                    const LoraConfig& lora,
                                                    const Placement& placement,
                                                    const NamedTensorList& tensors,
                                                    at::ScalarType dtype, at::Device device) {
  std::vector<parallel::NamedParameter> adapter =
      match_specs(lora_specs(config, lora, placement), tensors, "adapter");
  for (const parallel::NamedParameter& parameter : adapter)
    if (parameter.value.scalar_type() != dtype || parameter.value.device() != device)
      throw Error(ErrorCode::kMismatch, "an adapter has the decoder's dtype and device")
          .with("tensor", parameter.name);
  return adapter;
}

NamedTensorList random_parameters(const ModelConfig& config, const Placement& placement,
                                  uint64_t seed, at::ScalarType dtype, at::Device device) {
  // The counter of a tensor is its number in the whole model, so that a placement changes no value.
  std::map<std::string, uint64_t> index;
  for (const ParameterSpec& spec : parameter_specs(config))
    index.emplace(spec.name, index.size());

  // Values are drawn in fp32 on the CPU and then converted, so that they are the same for every
  // dtype and device.
  const auto options = at::TensorOptions().dtype(at::kFloat);
  NamedTensorList tensors;
  for (const ParameterSpec& spec : parameter_specs(config, placement)) {
    Tensor value;
    switch (spec.kind) {
      case ParameterKind::kMatrix:
        value =
            random_normal(spec.shard.shape, config.initializer_range, seed, index.at(spec.name));
        if (spec.shape != spec.shard.shape) {  // a copy: a view would keep the whole matrix alive
          const int64_t size = spec.shape[static_cast<size_t>(spec.shard.dim)];
          value = value.narrow(spec.shard.dim, spec.shard.begin, size).clone();
        }
        break;
      case ParameterKind::kNorm:
        value = config.norm_unit_offset ? at::zeros(spec.shape, options)
                                        : at::ones(spec.shape, options);
        break;
      case ParameterKind::kBias: value = at::zeros(spec.shape, options); break;
    }
    tensors.emplace_back(spec.name, value.to(device, dtype));
  }
  return tensors;
}

at::Tensor random_head(const ModelConfig& config, uint64_t seed, at::ScalarType dtype,
                       at::Device device) {
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  RETORT_CHECK(specs.back().name == kScoreHead) << "a model without such a head";
  const uint64_t counter = specs.size() - 1;
  return random_normal(specs.back().shape, config.initializer_range, seed, counter)
      .to(device, dtype);
}

}  // namespace retort::models
