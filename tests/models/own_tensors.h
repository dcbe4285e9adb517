// A decoder whose parameters each have memory of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"

namespace retort::models {

// As when they were read from a checkpoint: random ones are views of whole tensors.
inline Decoder own_tensors(const Decoder& decoder) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const parallel::NamedParameter& p : decoder.parameters())
    tensors.emplace_back(p.name, p.value.clone());
  return Decoder(decoder.config(), std::move(tensors), decoder.placement());
}

}  // namespace retort::models
