// Loading weights into vLLM: what the folder must hold, what the server is told, what it answers.
#pragma once

#include <filesystem>
#include <string>

#include "base/future.h"

namespace retort::engines::vllm {

// vLLM reads a folder without looking first: one that it cannot read ends the server at its next
// request. And of a model with tied embeddings it keeps the old head in a packed copy, unless the
// folder carries the head too. So the folder must hold
//   config.json, and weights whose headers are whole (models/safetensors/safetensors.h);
//   with tie_word_embeddings also lm_head.weight, in the shape of the embedding.
// Reads headers alone. kInvalidArgument, kCorrupt and kMismatch, naming folder or tensor.
void check_weight_folder(const std::filesystem::path& folder);

// The body for /collective_rpc: every worker reads the folder. kInvalidArgument for a path that is
// not UTF-8.
std::string reload_question(const std::string& folder);

// Checks the answer of /collective_rpc: {"results": [null, ...]}, one of each worker. kMismatch for
// another.
Empty check_reloaded(const std::string& json);

// Checks the answer of /reset_prefix_cache: {"success": true}, or nothing from versions that do not
// say. kUnavailable if requests are running, whose entries stay. kMismatch for another answer.
Empty check_cache_reset(const std::string& json);

}  // namespace retort::engines::vllm
