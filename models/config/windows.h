// The sliding windows of a config.json: which layers attend to how many tokens. Private to models/.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config/config.h"
#include "models/config/config_fields.h"

namespace retort::models {

// Returns the window of each layer, 0 for full attention. Reads family and num_hidden_layers of
// `config`.
std::vector<int64_t> parse_windows(const ConfigFields& fields, const ModelConfig& config);
void write_windows(ConfigJson& json, const ModelConfig& config);

}  // namespace retort::models
