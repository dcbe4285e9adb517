// Whether vLLM survives loading a folder.
#pragma once

#include <filesystem>

namespace retort::engines::vllm {

// vLLM reads a folder without looking first: one that it cannot read ends the server at its next
// request. And of a model with tied embeddings it keeps the old head in a packed copy, unless the
// folder carries the head too. So the folder must hold
//   config.json, and weights whose headers are whole (models/safetensors.h);
//   with tie_word_embeddings also lm_head.weight, in the shape of the embedding.
// Reads headers alone. kInvalidArgument, kCorrupt and kMismatch, naming folder or tensor.
void check_weight_folder(const std::filesystem::path& folder);

}  // namespace retort::engines::vllm
