// The rotary embedding of a config.json, in the style of transformers 4 (rope_theta, rope_scaling)
// and of transformers 5 (rope_parameters). Private to models/.
#pragma once

#include <cstdint>

#include "models/config.h"
#include "models/config_fields.h"

namespace retort::models {

// `max_positions`: what Llama 3's scaling takes for the original context when the file is silent.
Rope parse_rope(const ConfigFields& fields, int64_t max_positions);

bool same_rope(const Rope& a, const Rope& b);
// In the style of the keys that `json` has; transformers 5 where it has none.
void write_rope(ConfigJson& json, const Rope& rope);

}  // namespace retort::models
