// The rotary embeddings of a config.json, in the style of transformers 4 (rope_theta, rope_scaling,
// Gemma 3's rope_local_base_freq) and of transformers 5 (rope_parameters). Private to models/.
#pragma once

#include "models/config/config.h"
#include "models/config/config_fields.h"

namespace retort::models {

// Fills in rope and sliding_rope. Reads the family, head_dim and max_position_embeddings of
// `config`. kInvalidArgument naming the key for a type, or a key of one, that is not implemented.
void parse_ropes(const ConfigFields& fields, ModelConfig& config);

// Writes in the style of the keys that `json` has; in that of transformers 5 where it has none.
void write_ropes(ConfigJson& json, const ModelConfig& config);

}  // namespace retort::models
