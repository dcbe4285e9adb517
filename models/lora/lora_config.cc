#include "models/lora/lora_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "models/config/config_fields.h"
#include "models/lora/lora_pattern.h"

namespace retort::models {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::string_view, 7> kLinearModules{
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

// These keys are read here, or have no meaning for what the adapter computes.
const std::set<std::string>& adapter_keys() {
  static const std::set<std::string> keys{
      "r", "lora_alpha", "use_rslora", "modules_to_save", "target_modules",
      "base_model_name_or_path", "peft_type",
      // These say who wrote it and for what, or are initial values of a training that is over.
      "task_type", "inference_mode", "revision", "auto_mapping", "peft_version",
      "init_lora_weights", "lora_dropout", "runtime_config", "ensure_weight_tying",
      // These are settings of methods that other keys switch on.
      "bias", "megatron_core", "qalora_group_size"};
  return keys;
}

// PEFT writes every key that it knows: a key whose method is off changes nothing.
bool is_off(const ConfigJson& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || (value.is_structured() && value.empty());
}

// These names are listed as PEFT lists them: of a layer ("q_proj") or whole
// ("model.layers.0.self_attn.q_proj").
void read_target_list(const ConfigFields& fields, const ConfigJson& list,
                      const std::string& expected, LoraConfig& config) {
  for (const ConfigJson& one : list) {
    const std::string name = one.is_string() ? one.get<std::string>() : "";
    if (!is_linear_module(name.substr(name.rfind('.') + 1)))
      fields.fail("target_modules", list, expected);
    if (std::ranges::find(config.target_modules, name) == config.target_modules.end())
      config.target_modules.push_back(name);
  }
}

void read_saved(const ConfigFields& fields, LoraConfig& config) {
  const ConfigJson* value = fields.find("modules_to_save");
  if (value == nullptr) return;
  const std::string expected = "expected a list of names of layers";
  if (!value->is_array()) fields.fail("modules_to_save", *value, expected);
  for (const ConfigJson& one : *value) {
    if (!one.is_string() || one.get<std::string>().empty())
      fields.fail("modules_to_save", *value, expected);
    config.modules_to_save.push_back(one.get<std::string>());
  }
}

void read_targets(const ConfigFields& fields, LoraConfig& config) {
  const ConfigJson* value = fields.find("target_modules");
  const std::string expected =
      "expected all-linear, a pattern of whole names, or a list of q_proj, k_proj, v_proj, o_proj, "
      "gate_proj, up_proj, down_proj, qkv_proj, gate_up_proj: no other layer is adapted by this "
      "program";
  if (value == nullptr) fields.fail("target_modules", nullptr, expected);
  if (value->is_string() && *value == std::string(kAllLinear))
    config.target_modules.emplace_back(kAllLinear);
  else if (value->is_string())
    config.target_pattern = value->get<std::string>();
  else if (value->is_array())
    read_target_list(fields, *value, expected, config);
  if (config.target_modules.empty() && config.target_pattern.empty())
    fields.fail("target_modules", *value, expected);

  // A pattern that cannot be compiled is refused here, with the name of the file, rather than when
  // it is first used.
  if (config.target_pattern.empty()) return;
  try {
    check_target_pattern(config.target_pattern);
  } catch (const Error& error) {
    fields.fail("target_modules", *value, error.message());
  }
}

// Refuses by its name what makes other numbers of the same factors, or has other factors.
void refuse_other_functions(const ConfigJson& object, const ConfigFields& fields) {
  if (fields.text("peft_type", "LORA") != "LORA")
    fields.fail("peft_type", object.at("peft_type"),
                "expected LORA: no other adapter is computed here");
  if (fields.text("bias", "none") != "none")
    fields.fail("bias", object.at("bias"),
                "expected none: biases are not trained beside an adapter");
  if (const ConfigJson* init = fields.find("init_lora_weights");
      init != nullptr && !init->is_boolean() && *init != "gaussian")
    fields.fail("init_lora_weights", *init,
                "expected true, false or gaussian: the others change the base model's weights");
  for (const auto& [key, value] : object.items())
    if (!adapter_keys().contains(key) && !is_off(value))
      fields.fail(key, value, "expected it to be off: this program does not compute it");
}

ConfigJson read_adapter_object(const fs::path& folder) {
  const fs::path file = folder / kAdapterConfigFile;
  return parse_config_object(read_file(file), file.string());
}

}  // namespace

double LoraConfig::scaling() const {
  const auto rank = static_cast<double>(r);
  return lora_alpha / (use_rslora ? std::sqrt(rank) : rank);
}

bool LoraConfig::all_linear() const {
  return target_modules.size() == 1 && target_modules.front() == kAllLinear;
}

std::span<const std::string_view> linear_modules() { return kLinearModules; }

bool is_linear_module(std::string_view word) {
  return word == "qkv_proj" || word == "gate_up_proj" ||
         std::ranges::find(kLinearModules, word) != kLinearModules.end();
}

void check_target_pattern(const std::string& pattern) { LoraPattern{pattern}; }

bool is_adapter_folder(const fs::path& folder) {
  return fs::is_regular_file(folder / kAdapterConfigFile) &&
         !fs::is_regular_file(folder / "config.json");
}

LoraConfig parse_adapter_config(const std::string& text, const std::string& origin) {
  const ConfigJson object = parse_config_object(text, origin);
  const ConfigFields fields(object, "", origin);
  refuse_other_functions(object, fields);
  LoraConfig config{.r = fields.integer("r", std::nullopt, 1),
                    .lora_alpha = fields.number("lora_alpha", 8, 0),
                    .target_modules = {},
                    .use_rslora = fields.boolean("use_rslora", false),
                    .lora_dropout = fields.number("lora_dropout", 0, 0)};
  if (config.lora_dropout > 1)
    fields.fail("lora_dropout", object.at("lora_dropout"), "expected a number from 0 to 1");
  read_saved(fields, config);
  read_targets(fields, config);
  if (!std::isfinite(config.lora_alpha) || config.lora_alpha <= 0)
    fields.fail("lora_alpha", object.value("lora_alpha", ConfigJson()),
                "expected a number above 0");
  return config;
}

LoraConfig read_adapter_config(const fs::path& folder) {
  const fs::path file = folder / kAdapterConfigFile;
  return parse_adapter_config(read_file(file), file.string());
}

fs::path adapter_base_folder(const fs::path& folder) {
  const std::string origin = (folder / kAdapterConfigFile).string();
  const ConfigJson object = read_adapter_object(folder);
  const std::string base = ConfigFields(object, "", origin).text("base_model_name_or_path", "");
  for (const fs::path& found : {fs::path(base), folder / base})
    if (!base.empty() && fs::is_regular_file(found / "config.json")) return found;
  throw Error(ErrorCode::kInvalidArgument,
              origin + ": base_model_name_or_path '" + base +
                  "' is no folder of a model; name the one that the adapter is of")
      .with("file", origin);
}

std::string write_adapter_config(const LoraConfig& config, const std::string& base_model,
                                 bool classifies) {
  ConfigJson json;
  json["alpha_pattern"] = ConfigJson::object();
  json["auto_mapping"] = nullptr;
  json["base_model_name_or_path"] = base_model;
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["layers_pattern"] = nullptr;
  json["layers_to_transform"] = nullptr;
  // PEFT has an integer there; any number has the same meaning.
  if (config.lora_alpha == std::floor(config.lora_alpha) && config.lora_alpha < 1e15)
    json["lora_alpha"] = static_cast<int64_t>(config.lora_alpha);
  else
    json["lora_alpha"] = config.lora_alpha;
  json["lora_dropout"] = config.lora_dropout;
  json["modules_to_save"] = nullptr;
  if (!config.modules_to_save.empty()) json["modules_to_save"] = config.modules_to_save;
  json["peft_type"] = "LORA";
  json["r"] = config.r;
  json["rank_pattern"] = ConfigJson::object();
  json["revision"] = nullptr;
  if (config.all_linear())
    json["target_modules"] = std::string(kAllLinear);
  else if (!config.target_pattern.empty())
    json["target_modules"] = config.target_pattern;
  else
    json["target_modules"] = config.target_modules;
  json["task_type"] = classifies ? "SEQ_CLS" : "CAUSAL_LM";
  json["use_dora"] = false;
  json["use_rslora"] = config.use_rslora;
  return json.dump(2) + "\n";
}

}  // namespace retort::models
