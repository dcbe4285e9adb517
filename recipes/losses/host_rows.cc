#include "recipes/losses/host_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <cstddef>
#include <cstdint>

namespace retort::losses {

std::vector<at::Tensor> in_host_memory(std::vector<at::Tensor> vectors) {
  // All vectors of a device cross in one copy, because the host waits for the device at each.
  std::vector<at::Tensor> there;
  std::vector<int64_t> lengths;
  std::vector<size_t> places;
  for (size_t i = 0; i < vectors.size(); ++i) {
    if (!vectors[i].defined() || vectors[i].is_cpu()) continue;
    there.push_back(vectors[i]);
    lengths.push_back(vectors[i].numel());
    places.push_back(i);
  }
  if (there.empty()) return vectors;

  const std::vector<at::Tensor> here = at::cat(there).cpu().split_with_sizes(lengths);
  for (size_t i = 0; i < places.size(); ++i)
    vectors[places[i]] = here[i];
  return vectors;
}

}  // namespace retort::losses
