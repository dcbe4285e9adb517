#include "models/config/windows.h"

#include <algorithm>
#include <string>

#include "models/config/families.h"

namespace retort::models {
namespace {

// An explicit null says that there is none, which is 0; only an absent key takes the family's.
int64_t window_size(const ConfigFields& fields, const FamilyTraits& family) {
  return fields.present("sliding_window") ? fields.integer("sliding_window", 0, 1)
                                          : family.sliding_window;
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
std::vector<int64_t> alternating_windows(const ConfigFields& fields, const FamilyTraits& family,
                                         size_t layers) {
  const int64_t window = window_size(fields, family);
  if (const ConfigJson* types = fields.find("layer_types"))
    return windows_of_layer_types(fields, *types, layers, window, "a sliding_window");
  const int64_t every = family.full_attention_every;
  const int64_t pattern = family.windows == WindowKeys::kPatternNamed
                              ? fields.integer("sliding_window_pattern", every, 1)
                              : every;
  if (window == 0)
    fields.fail("sliding_window", nullptr, "most layers of this family need a sliding_window");
  std::vector<int64_t> windows(layers, window);
  for (size_t i = 0; i < layers; ++i)
    if ((static_cast<int64_t>(i) + 1) % pattern == 0) windows[i] = 0;
  return windows;
}

// Qwen: its windows are off unless use_sliding_window says otherwise.
std::vector<int64_t> switched_windows(const ConfigFields& fields, const FamilyTraits& family,
                                      size_t layers) {
  const bool used = fields.boolean("use_sliding_window", false);
  const int64_t window = used ? window_size(fields, family) : 0;
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

}  // namespace

std::vector<int64_t> parse_windows(const ConfigFields& fields, const ModelConfig& config) {
  const FamilyTraits& family = family_traits(config.family);
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  switch (family.windows) {
    case WindowKeys::kNone: break;
    case WindowKeys::kOneForAll: return std::vector<int64_t>(layers, window_size(fields, family));
    case WindowKeys::kSwitchedOn: return switched_windows(fields, family, layers);
    case WindowKeys::kAlternating:
    case WindowKeys::kPatternNamed: return alternating_windows(fields, family, layers);
  }
  return std::vector<int64_t>(layers, 0);
}

void write_windows(ConfigJson& json, const ModelConfig& config) {
  const WindowKeys keys = family_traits(config.family).windows;
  if (keys == WindowKeys::kNone) return;
  // A config has one size for all windows; layer_types says which layers have it.
  const auto widest = std::max_element(config.sliding_window.begin(), config.sliding_window.end());
  const int64_t window = widest == config.sliding_window.end() ? 0 : *widest;
  json["sliding_window"] = window > 0 ? ConfigJson(window) : ConfigJson(nullptr);
  if (keys == WindowKeys::kOneForAll) return;
  if (keys == WindowKeys::kSwitchedOn) json["use_sliding_window"] = window > 0;
  ConfigJson types = ConfigJson::array();
  for (int64_t w : config.sliding_window)
    types.push_back(w > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = types;
}

}  // namespace retort::models
