// How many numbers the factors of an adapter are. Private to models/.
#pragma once

#include <cstdint>
#include <set>

#include "models/config/config.h"
#include "models/lora/lora_config.h"

namespace retort::models {

// Of a tensor-parallel rank that has its share of every matrix. Layers may differ in what is
// adapted: of a single layer the most that one of them has.
struct AdapterElements {
  int64_t all = 0;            // elements, of all the layers
  int64_t most_of_layer = 0;  // elements
  int64_t most_modules = 0;   // linear layers with factors, in a layer
  // What is trained whole beside the factors, before the layers, within `all`, and behind them.
  int64_t embedding = 0;
  int64_t behind_layers = 0;
  bool head = false;
};
// `layers`: those that are counted, by their numbers in the whole model; with the first one what
// stands before the layers, with the last one what stands behind them.
AdapterElements adapter_elements(const ModelConfig& config, const LoraConfig& lora, int64_t tp,
                                 const std::set<int64_t>& layers);

}  // namespace retort::models
