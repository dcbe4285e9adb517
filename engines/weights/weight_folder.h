// Checks a folder of weights before it is given to a server.
#pragma once

#include <filesystem>

#include "base/error.h"
#include "models/config/config.h"
#include "models/safetensors/safetensors.h"

namespace retort::engines {

// A server reads a folder without looking first, and may not survive one that it cannot read. So it
// must be named by an absolute path and hold config.json, weights whose headers are whole
// (models/safetensors/safetensors.h), and among them the embedding.
// Reads headers alone. kInvalidArgument, kCorrupt and kMismatch, naming folder or tensor.
struct WeightFolder {
  explicit WeightFolder(const std::filesystem::path& folder);
  const models::ModelConfig config;
  const models::SafetensorsReader weights;
};

inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";

[[noreturn]] void refuse_folder(ErrorCode code, const std::filesystem::path& folder,
                                const std::string& what);

}  // namespace retort::engines
