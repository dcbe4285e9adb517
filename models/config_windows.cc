#include "models/config_windows.h"

#include <algorithm>
#include <string>

#include "models/config_families.h"

namespace retort::models {
namespace {

constexpr int64_t kDefaultWindow = 4096;  // of all families that have one unless they say otherwise

// An explicit null says that there is none, which is 0; only an absent key takes the default.
int64_t window_size(const ConfigFields& fields) {
  return fields.present("sliding_window") ? fields.integer("sliding_window", 0, 1) : kDefaultWindow;
}

// Qwen and Gemma say of each layer which kind it is. `lacking`: what a sliding layer needs, for the
// message.
std::vector<int64_t> windows_of_layer_types(const ConfigFields& fields, const ConfigJson& types,
                                            size_t layers, int64_t window, const char* lacking) {
  if (!types.is_array() || types.size() != layers) {
    fields.fail("layer_types", types,
                "expected one entry for each of the " + std::to_string(layers) + " layers");
  }
  std::vector<int64_t> windows(layers, 0);
  for (size_t i = 0; i < layers; ++i) {
    const ConfigJson& type = types[i];
    if (type == "full_attention") continue;
    if (type != "sliding_attention") {
      fields.fail("layer_types", type, "supported: full_attention, sliding_attention");
    }
    if (window == 0)
      fields.fail("layer_types", type, std::string("sliding layers need ") + lacking);
    windows[i] = window;
  }
  return windows;
}

// Every second layer of Gemma 2, every sixth of Gemma 3 is without a window, unless the file says
// which.
std::vector<int64_t> gemma_windows(const ConfigFields& fields, const ModelConfig& config) {
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  const int64_t window = window_size(fields);
  if (const ConfigJson* types = fields.find("layer_types"))
    return windows_of_layer_types(fields, *types, layers, window, "a sliding_window");
  const int64_t pattern =
      config.family == Family::kGemma2 ? 2 : fields.integer("sliding_window_pattern", 6, 1);
  if (window == 0)
    fields.fail("sliding_window", nullptr, "most layers of this family need a sliding_window");
  std::vector<int64_t> windows(layers, window);
  for (size_t i = 0; i < layers; ++i)
    if ((static_cast<int64_t>(i) + 1) % pattern == 0) windows[i] = 0;
  return windows;
}

// One window for all layers, or none.
bool has_one_window(Family family) { return family == Family::kMistral || family == Family::kPhi3; }

}  // namespace

std::vector<int64_t> parse_windows(const ConfigFields& fields, const ModelConfig& config) {
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  if (config.family == Family::kLlama) return std::vector<int64_t>(layers, 0);
  if (is_gemma(config.family)) return gemma_windows(fields, config);
  if (config.family == Family::kPhi3 && !fields.present("sliding_window"))
    return std::vector<int64_t>(layers, 0);
  if (has_one_window(config.family)) return std::vector<int64_t>(layers, window_size(fields));

  // Qwen: its windows are off unless use_sliding_window says otherwise.
  const bool used = fields.boolean("use_sliding_window", false);
  const int64_t window = used ? window_size(fields) : 0;
  const ConfigJson* types = fields.find("layer_types");
  if (types != nullptr)
    return windows_of_layer_types(fields, *types, layers, window,
                                  "use_sliding_window: true and a sliding_window");

  // Older files name the first layer with a window.
  const int64_t full = fields.integer("max_window_layers", 28, 0);
  std::vector<int64_t> windows(layers, 0);
  for (size_t i = 0; i < layers; ++i)
    windows[i] = static_cast<int64_t>(i) >= full ? window : 0;
  return windows;
}

void write_windows(ConfigJson& json, const ModelConfig& config) {
  if (config.family == Family::kLlama) return;
  const auto widest = std::max_element(config.sliding_window.begin(), config.sliding_window.end());
  const int64_t window = widest == config.sliding_window.end() ? 0 : *widest;
  json["sliding_window"] = window > 0 ? ConfigJson(window) : ConfigJson(nullptr);
  if (has_one_window(config.family)) return;
  if (!is_gemma(config.family)) json["use_sliding_window"] = window > 0;
  ConfigJson types = ConfigJson::array();
  for (int64_t w : config.sliding_window)
    types.push_back(w > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = types;
}

}  // namespace retort::models
