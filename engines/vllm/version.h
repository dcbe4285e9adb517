// Which vLLM a server is.
#pragma once

#include <string>

namespace retort::engines::vllm {

// From the answer of /version; kCorrupt for another.
std::string read_version(const std::string& json);

}  // namespace retort::engines::vllm
