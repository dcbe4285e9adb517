// Reads an SGLang server's descriptions of its model and of itself.
#pragma once

#include <cstdint>
#include <string>

namespace retort::engines::sglang {

struct ModelInfo {
  std::string name;            // served_model_name; after weights were loaded, their folder
  std::string model_path;      // whose weights it serves
  std::string weight_version;  // as whoever loaded them called them; "default" at first
};

struct ServerInfo {
  std::string version;
  int64_t context_tokens = 0;  // of prompt and completion
  bool deterministic = false;  // --enable-deterministic-inference: it honours seeds
};

// Reads the answer of /model_info; kCorrupt for another, kInvalidArgument for a model that does not
// generate.
ModelInfo read_model_info(const std::string& json);

// Reads the answer of /server_info. No error shows anything of it, because it has the server's
// keys. kCorrupt for another answer.
ServerInfo read_server_info(const std::string& json);

// kMismatch if the server has another model than `wanted` (ExternalOptions::served_model; empty:
// any). Weights of ours rename it: it may also have one that lies in `weights_folder`.
void check_served_model(const ModelInfo& model, const std::string& wanted,
                        const std::string& weights_folder);

}  // namespace retort::engines::sglang
