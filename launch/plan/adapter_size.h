// How large an adapter is, and what it changes, by its settings alone.
#pragma once

#include <cstdint>

#include "models/config/config.h"
#include "models/lora/lora_config.h"

namespace retort::launch {

// Elements, of the whole model. Of the two factors of a matrix tensor-parallel ranks split one and
// have the other each (models/lora/lora_specs.h).
struct AdapterSize {
  int64_t split = 0;
  int64_t whole = 0;

  // What a rank of `tp` has, and all of them together.
  int64_t on_rank(int64_t tp) const { return split / tp + whole; }
  int64_t on_ranks(int64_t tp) const { return split + tp * whole; }
};
AdapterSize adapter_size(const models::ModelConfig& config, const models::LoraConfig& lora);

// Elements of the matrices that are adapted, as a rank of `tp` holds them.
int64_t adapted_elements(const models::ModelConfig& config, const models::LoraConfig& lora,
                         int64_t tp);

}  // namespace retort::launch
