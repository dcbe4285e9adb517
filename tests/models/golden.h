// The golden checkpoints that make_goldens.py wrote.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/source_folder.h"

namespace retort::models {

inline const char* const kGoldens[] = {"llama",
                                       "llama3_rope",
                                       "llama_bias_linear",
                                       "mistral_window",
                                       "mistral_sharded",
                                       "qwen2",
                                       "qwen2_window_bf16",
                                       "qwen3",
                                       "qwen3_bias",
                                       "llama_yarn",
                                       "qwen3_yarn_mscale",
                                       "llama_dynamic",
                                       "phi3_partial",
                                       "phi3_longrope",
                                       "gemma3",
                                       "gemma2"};

inline std::filesystem::path golden_folder(const std::string& name) {
  return test::source_folder() / "tests/models/goldens" / name;
}

}  // namespace retort::models
