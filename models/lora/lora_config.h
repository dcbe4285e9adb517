// What a LoRA adapter is (Hu et al. 2021, arXiv 2106.09685), in PEFT's words and files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace retort::models {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

// A linear layer with weight W [out, in] that is adapted computes
//   y = x W^T + scaling * (x A^T) B^T,   A [r, in], B [out, r]
struct LoraConfig {
  int64_t r = 16;
  double lora_alpha = 32;
  // Names inside a layer, of linear_modules() and in their order, each once; in every layer.
  std::vector<std::string> target_modules;
  // The scaling keeps what an adapter adds at the same size whatever its rank is (rsLoRA,
  // Kalajdzievski 2023, arXiv 2312.03732).
  bool use_rslora = false;

  // lora_alpha / r, or with use_rslora lora_alpha / sqrt(r).
  double scaling() const;
  bool adapts(std::string_view module) const;
  // Elements of A and B together for a W [out, in].
  int64_t num_elements(int64_t out, int64_t in) const { return r * (out + in); }
  bool operator==(const LoraConfig&) const = default;
};

// q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj: what PEFT means by "all-linear" in
// the models of this program.
std::span<const std::string_view> linear_modules();

// Whether the folder holds an adapter and no model.
bool is_adapter_folder(const std::filesystem::path& folder);

// adapter_config.json of PEFT. kInvalidArgument naming the file and the key for what changes the
// function and is not computed here (use_dora, bias, rank_pattern, ...), for an unknown
// target and for what is no such file.
LoraConfig read_adapter_config(const std::filesystem::path& folder);
// The same of the file's text; `origin` is named in errors.
LoraConfig parse_adapter_config(const std::string& text, const std::string& origin);
// The folder of the model that it names (base_model_name_or_path): as it stands there, or from the
// adapter's folder. kInvalidArgument if no model is there.
std::filesystem::path adapter_base_folder(const std::filesystem::path& folder);

// The text of the file that PEFT opens. `base_model`: where the frozen weights are.
std::string write_adapter_config(const LoraConfig& config, const std::string& base_model);

}  // namespace retort::models
