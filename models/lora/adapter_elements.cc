#include "models/lora/adapter_elements.h"

#include <algorithm>
#include <map>
#include <string>

#include "models/lora/lora_targets.h"

namespace retort::models {
namespace {

// The rank's share of what goes into and comes out of the parts of a linear layer.
int64_t sides_of(const ModelConfig& config, const AdaptedModule& module, int64_t tp) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size / tp;
  const int64_t q = config.num_attention_heads / tp * config.head_dim;
  const int64_t kv = std::max<int64_t>(1, config.num_key_value_heads / tp) * config.head_dim;

  const std::string& first = module.parts.front();
  int64_t sides = first == "o_proj" ? q : first == "down_proj" ? inner : hidden;
  for (const std::string& part : module.parts) {
    const bool of_keys = part == "k_proj" || part == "v_proj";
    const bool to_hidden = part == "o_proj" || part == "down_proj";
    sides += part == "q_proj" ? q : of_keys ? kv : to_hidden ? hidden : inner;
  }
  return sides;
}

}  // namespace

AdapterElements adapter_elements(const ModelConfig& config, const LoraConfig& lora, int64_t tp,
                                 const std::set<int64_t>& layers) {
  AdapterElements sum;
  std::map<int64_t, AdapterElements> of_layer;
  for (const AdaptedModule& module : adapted_modules(config, lora)) {
    if (!layers.contains(module.layer)) continue;
    AdapterElements& layer = of_layer[module.layer];
    layer.all += lora.r * sides_of(config, module, tp);
    ++layer.most_modules;
  }
  for (const auto& [index, layer] : of_layer) {
    sum.all += layer.all;
    sum.most_of_layer = std::max(sum.most_of_layer, layer.all);
    sum.most_modules = std::max(sum.most_modules, layer.most_modules);
  }
  return sum;
}

}  // namespace retort::models
