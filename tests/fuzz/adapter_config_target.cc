// Decodes: adapter_config.json of an adapter that somebody else made (models/lora/lora_config.h).
// Holds: what is taken scales by a finite number above 0 and adapts layers that there are, and what
//   is written of it is taken again as the same.
#include "models/lora/lora_config.h"

#include <cmath>

#include "tests/fuzz/target_list.h"

namespace retort::fuzz::adapter_config {
namespace {

using namespace models;

bool decode(std::string_view bytes) {
  const LoraConfig config = parse_adapter_config(std::string(bytes), "adapter_config.json");
  expect(config.r > 0 && config.lora_alpha > 0 && std::isfinite(config.lora_alpha),
         "a scaling that is none");
  expect(config.target_modules.empty() != config.target_pattern.empty(), "targets that are none");
  expect(
      parse_adapter_config(write_adapter_config(config, "base"), "adapter_config.json") == config,
      "written again it is another");
  return true;
}

std::vector<Seed> seeds() {
  return {
      {"all_linear",
       write_adapter_config(
           {.r = 16, .lora_alpha = 32, .target_modules = {"q_proj", "o_proj", "down_proj"}}, "b")},
      {"peft", R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16.5, "lora_dropout": 0.05,
"target_modules": ["model.layers.0.self_attn.q_proj", "v_proj"], "bias": "none",
"use_dora": false, "rank_pattern": {}, "modules_to_save": null, "init_lora_weights": true})"},
      {"pattern", R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_rslora": true,
"target_modules": ".*\\.(0|1)\\.self_attn\\.(q|v)_proj"})"},
  };
}

}  // namespace

Target target() { return {"adapter_config", decode, seeds}; }

}  // namespace retort::fuzz::adapter_config
