// The part of Decoder that is about its adapter.
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/decoder.h"
#include "models/decoder_impl.h"
#include "models/decoder_parameters.h"
#include "models/lora/lora_specs.h"

namespace retort::models {

namespace {

// The ends with what an adapter has in their places.
template <class Ends>
Ends adapted_ends(Ends ends, const std::vector<parallel::NamedParameter>& tensors) {
  for (const parallel::NamedParameter& tensor : tensors) {
    if (tensor.name == "model.embed_tokens.weight") ends.embedding = tensor.value;
    if (tensor.name == "model.norm.weight") ends.final_norm = tensor.value;
    if (tensor.name == "lm_head.weight" || tensor.name == kScoreHead) ends.head = tensor.value;
  }
  return ends;
}

}  // namespace

// Gives the layers what is trained of them, which follows one another as in the model.
void Decoder::Impl::bind_adapter() {
  before_layers = 0;
  while (before_layers < adapter.size() && layer_of(adapter[before_layers].name) < 0)
    ++before_layers;
  if (!placement.first()) before_layers = 0;

  size_t next = before_layers;
  for (std::vector<Layer>& chunk : chunks)
    for (Layer& layer : chunk) {
      layer.begin = next;
      layer.own = layer.weights;
      layer.weights = adapted_layer(layer.own, adapter, layer.index, lora->scaling(), next);
      layer.end = next;
    }
  after_layers = next;
  own_ends = ends;
  ends = adapted_ends(own_ends, adapter);
  const bool placed =
      std::all_of(adapter.begin() + static_cast<std::ptrdiff_t>(next), adapter.end(),
                  [](const parallel::NamedParameter& tensor) { return layer_of(tensor.name) < 0; });
  RETORT_CHECK(placed) << adapter.at(next).name << " belongs to no layer here";
}

void Decoder::Impl::bind_first_adapter() {
  size_t next = before_layers;
  for (std::vector<Layer>& chunk : chunks)
    for (Layer& layer : chunk)
      layer.first = adapted_layer(layer.own, first_adapter, layer.index, lora->scaling(), next);
  first_ends = adapted_ends(own_ends, first_adapter);
}

// The layer's weights as they are trained, or as they were before anything was.
const LayerWeights& Decoder::Impl::weights_of(const Layer& layer) const {
  if (!lora || adapter_state == AdapterState::kTrained) return layer.weights;
  return adapter_state == AdapterState::kFirst ? layer.first : layer.own;
}

const Decoder::Impl::Ends& Decoder::Impl::ends_of_state() const {
  if (!lora || adapter_state == AdapterState::kTrained) return ends;
  return adapter_state == AdapterState::kFirst ? first_ends : own_ends;
}

// Nothing is dropped where nothing is trained: in evaluation, of references, while drawing.
DropoutRows Decoder::Impl::dropout_of(const PackedTokens& tokens) const {
  const bool trains = adapter_state == AdapterState::kTrained && c10::GradMode::is_enabled();
  if (!lora || !trains) return {};
  return dropout_rows(tokens, padded_tokens(tokens), dropout, dropout_seed, dropout_step);
}

void Decoder::attach_adapter(const LoraConfig& lora,
                             const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  if (impl_->lora) detach_adapter();
  impl_->adapter = match_adapter(impl_->config, lora, impl_->placement, tensors, dtype(), device());
  impl_->lora = lora;
  impl_->bind_adapter();
}

void Decoder::attach_first_adapter(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  RETORT_CHECK(impl_->lora) << "a first state of an adapter that is not there";
  impl_->first_adapter =
      match_adapter(impl_->config, *impl_->lora, impl_->placement, tensors, dtype(), device());
  impl_->bind_first_adapter();
}

bool Decoder::has_first_adapter() const { return !impl_->first_adapter.empty(); }

// Layers are bound to their parameters again, as at first.
void Decoder::detach_adapter() {
  impl_->lora.reset();
  impl_->adapter.clear();
  impl_->first_adapter.clear();
  impl_->adapter_state = AdapterState::kTrained;
  impl_->dropout = 0;
  impl_->chunks.clear();
  impl_->bind();
}

const LoraConfig* Decoder::lora() const { return impl_->lora ? &*impl_->lora : nullptr; }
void Decoder::use_adapter(AdapterState state) {
  RETORT_CHECK(state != AdapterState::kFirst || has_first_adapter()) << "no first adapter is kept";
  impl_->adapter_state = state;
}

void Decoder::set_adapter_dropout(double lora_dropout, uint64_t seed) {
  RETORT_CHECK(impl_->lora) << "dropout of an adapter that is not there";
  impl_->lora->lora_dropout = impl_->dropout = lora_dropout;
  impl_->dropout_seed = seed;
}
void Decoder::set_dropout_step(uint64_t step) { impl_->dropout_step = step; }

std::vector<parallel::NamedParameter> Decoder::trained_parameters() const {
  return impl_->lora ? impl_->adapter : impl_->parameters;
}

}  // namespace retort::models
