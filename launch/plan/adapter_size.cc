#include "launch/plan/adapter_size.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "models/lora/lora_targets.h"

namespace retort::launch {
namespace {

// The size of a matrix [out, in] of each layer, in the whole model.
struct Matrix {
  int64_t out = 0, in = 0;
  bool row_parallel = false;  // split by its inputs, not by its outputs
};

Matrix matrix_of(const models::ModelConfig& config, std::string_view module) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  if (module == "o_proj") return {hidden, queries, true};
  if (module == "down_proj") return {hidden, inner, true};
  if (module == "q_proj") return {queries, hidden};
  if (module == "k_proj" || module == "v_proj") return {keys, hidden};
  return {inner, hidden};
}

}  // namespace

AdapterSize adapter_size(const models::ModelConfig& config, const models::LoraConfig& lora) {
  AdapterSize size;
  for (const models::AdaptedModule& module : models::adapted_modules(config, lora)) {
    const Matrix first = matrix_of(config, module.parts.front());
    int64_t out = 0;
    for (const std::string& part : module.parts)
      out += matrix_of(config, part).out;
    // A is [r, in] and B is [out, r]: tp splits A of a matrix that is split by its inputs, and B of
    // another one.
    size.split += lora.r * (first.row_parallel ? first.in : out);
    size.whole += lora.r * (first.row_parallel ? out : first.in);
  }
  for (const std::string& parameter : models::saved_parameters(config, lora)) {
    const bool table = parameter == "lm_head.weight" || parameter.ends_with("embed_tokens.weight");
    const bool of_heads =
        parameter.ends_with("q_norm.weight") || parameter.ends_with("k_norm.weight");
    if (table)
      size.split += config.vocab_size * config.hidden_size;
    else if (parameter.ends_with("score.weight"))
      size.whole += config.classifier.num_labels * config.hidden_size;
    else
      size.whole += of_heads ? config.head_dim : config.hidden_size;
  }
  return size;
}

int64_t adapted_elements(const models::ModelConfig& config, const models::LoraConfig& lora,
                         int64_t tp) {
  int64_t elements = 0;
  for (const models::AdaptedModule& module : models::adapted_modules(config, lora))
    for (const std::string& part : module.parts) {
      const Matrix matrix = matrix_of(config, part);
      // Where there are more ranks than heads of keys some ranks hold the same heads.
      const bool of_keys = part == "k_proj" || part == "v_proj";
      const int64_t parts = of_keys ? std::min(tp, config.num_key_value_heads) : tp;
      elements += matrix.out * matrix.in / parts;
    }
  return elements;
}

}  // namespace retort::launch
