// Checks that a folder holds the tensors that its config.json asks for. Private to models/.
#pragma once

#include <filesystem>

#include "models/config/config.h"
#include "models/safetensors/safetensors.h"

namespace retort::models {

// A .safetensors file or a folder of them that the user names: kInvalidArgument, where the reader
// says kCorrupt.
SafetensorsReader open_weights(const std::filesystem::path& path);

// The weights of a model folder whose config.json is `config`: its tensors are those of the model
// that it describes, in name and shape; what is redundant (frequencies of the rotary embedding, a
// second copy of a tied head) may be there too. Of a tied model whose files hold the head alone,
// the reader has it under the name of the embedding.
// Errors: kInvalidArgument naming the folder, and the tensor that is missing, misshaped, of no use,
// or a tied head with other numbers than the embedding; or the file that is damaged or is something
// else. Reads headers alone, but for a tied model that has both tables these.
SafetensorsReader open_checkpoint(const ModelConfig& config, const std::filesystem::path& folder);

}  // namespace retort::models
