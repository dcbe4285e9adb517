// Whether a folder holds the tensors that its config.json asks for. Private to models/.
#pragma once

#include <filesystem>

#include "models/config.h"
#include "models/safetensors.h"

namespace retort::models {

// The tensors of `reader` are those of the model that `config` describes, in name and shape; what
// is redundant (frequencies of the rotary embedding, a second copy of a tied head) may be there
// too. `folder` is for the message. kMismatch naming the tensor.
void check_checkpoint(const SafetensorsReader& reader, const ModelConfig& config,
                      const std::filesystem::path& folder);

}  // namespace retort::models
