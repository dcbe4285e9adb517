#include "recipes/run/damaged_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <utility>
#include <vector>

#include "parallel/parameter.h"

namespace retort::recipes {

std::string damaged_weights(const models::Decoder& decoder) {
  const at::NoGradGuard no_grad;
  std::vector<parallel::NamedParameter> parameters = decoder.parameters();
  if (decoder.lora())
    for (parallel::NamedParameter& parameter : decoder.trained_parameters())
      parameters.push_back(std::move(parameter));

  for (const parallel::NamedParameter& parameter : parameters) {
    const int64_t all = parameter.value.numel();
    const int64_t finite = at::isfinite(parameter.value.detach()).sum().item<int64_t>();
    if (finite < all)
      return "'" + parameter.name + "' holds " + std::to_string(all - finite) + " of " +
             std::to_string(all) + " numbers that are not finite";
  }
  return "";
}

}  // namespace retort::recipes
