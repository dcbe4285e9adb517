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
  // As PEFT matches them: layers whose whole name, or its end from a dot on, is among these
  // (adapted_modules in models/lora/lora_targets.h); or "all-linear" alone.
  std::vector<std::string> target_modules;
  // The scaling keeps what an adapter adds at the same size whatever its rank is (rsLoRA,
  // Kalajdzievski 2023, arXiv 2312.03732).
  bool use_rslora = false;
  // While it is trained, the share of the elements of its input that are dropped. Of a trained one
  // no more than a note.
  double lora_dropout = 0;
  // Ends of the names of layers that are trained whole beside the factors, as PEFT matches them
  // (saved_parameters in models/lora/lora_targets.h).
  std::vector<std::string> modules_to_save{};
  // In the place of target_modules, which are empty then: a regular expression that matches the
  // whole names of the layers; "": none.
  std::string target_pattern{};

  // lora_alpha / r, or with use_rslora lora_alpha / sqrt(r).
  double scaling() const;
  bool all_linear() const;
  // Elements of A and B together for a W [out, in].
  int64_t num_elements(int64_t out, int64_t in) const { return r * (out + in); }
  bool operator==(const LoraConfig&) const = default;
};

inline constexpr std::string_view kAllLinear = "all-linear";

// q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj: what PEFT means by "all-linear" in
// models whose files hold each by itself.
std::span<const std::string_view> linear_modules();
// Those and qkv_proj and gate_up_proj, for models whose files hold some fused (Phi-3).
bool is_linear_module(std::string_view word);
// kInvalidArgument naming target_modules for what is no regular expression.
void check_target_pattern(const std::string& pattern);

// True when the folder holds an adapter and no model.
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

// The text of the file that PEFT opens. `base_model`: where the frozen weights are. `classifies`:
// the adapter is of a sequence classifier.
std::string write_adapter_config(const LoraConfig& config, const std::string& base_model,
                                 bool classifies = false);

}  // namespace retort::models
