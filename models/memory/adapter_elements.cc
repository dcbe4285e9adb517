#include "models/memory/adapter_elements.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "models/lora/lora_specs.h"
#include "models/lora/lora_targets.h"
#include "models/parameters/parameter_specs.h"
#include "parallel/vocab_shard.h"

namespace retort::models {
namespace {

// Returns the rank's share of what goes into and comes out of the parts of a linear layer, on which
// the sizes of its factors depend.
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

  const std::vector<std::string> saved = saved_parameters(config, lora);
  const int64_t table = parallel::vocab_rows_per_rank(config.vocab_size, tp) * config.hidden_size;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    if (std::ranges::find(saved, spec.name) == saved.end()) continue;
    const int64_t layer = layer_of(spec.name);
    const int64_t elements = c10::multiply_integers(spec.shape);
    if (layer >= 0 && layers.contains(layer)) of_layer[layer].all += elements;
    if (layer >= 0) continue;
    const bool first = spec.name == "model.embed_tokens.weight";
    const bool vocab = first || spec.name == "lm_head.weight";
    if (first && layers.contains(0)) sum.embedding = table;
    if (first || !layers.contains(config.num_hidden_layers - 1)) continue;
    sum.behind_layers += vocab ? table : elements;
    sum.head = sum.head || spec.kind == ParameterKind::kMatrix;
  }

  for (const auto& [index, layer] : of_layer) {
    sum.all += layer.all;
    sum.most_of_layer = std::max(sum.most_of_layer, layer.all);
    sum.most_modules = std::max(sum.most_modules, layer.most_modules);
  }
  sum.all += sum.embedding + sum.behind_layers;
  return sum;
}

}  // namespace retort::models
