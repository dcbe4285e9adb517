// The part of Decoder that is about its adapter.
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/decoder.h"
#include "models/decoder_impl.h"
#include "models/decoder_parameters.h"

namespace retort::models {

// Gives the layers their factors, which follow one another as their matrices do.
void Decoder::Impl::bind_adapter() {
  size_t next = 0;
  for (std::vector<Layer>& chunk : chunks)
    for (Layer& layer : chunk) {
      layer.begin = next;
      layer.weights.scaling = lora->scaling();
      layer.weights.factors = layer_factors(adapter, layer.index, next);
      layer.end = next;
    }
  RETORT_CHECK(next == adapter.size()) << next << " of " << adapter.size() << " factors placed";
}

void Decoder::Impl::bind_first_adapter() {
  size_t next = 0;
  for (std::vector<Layer>& chunk : chunks)
    for (Layer& layer : chunk)
      layer.first = layer_factors(first_adapter, layer.index, next);
  RETORT_CHECK(next == adapter.size()) << next << " of " << adapter.size() << " factors placed";
}

// The layer's weights as they were before anything was trained.
LayerWeights Decoder::Impl::untrained(const Layer& layer) const {
  return layer.weights.with_factors(adapter_state == AdapterState::kFirst ? layer.first
                                                                          : LayerFactors{});
}

// Nothing is dropped where nothing is trained: in evaluation, of references, while drawing.
DropoutRows Decoder::Impl::dropout_of(const PackedTokens& tokens) const {
  const bool trains = adapter_state == AdapterState::kTrained && c10::GradMode::is_enabled();
  if (!lora || !trains) return {};
  return dropout_rows(tokens, padded_tokens(tokens), dropout, dropout_seed, dropout_step);
}

void Decoder::attach_adapter(const LoraConfig& lora,
                             const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
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
