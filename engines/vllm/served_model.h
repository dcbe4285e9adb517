// Which model a vLLM server serves.
#pragma once

#include <cstdint>
#include <string>

namespace retort::engines::vllm {

struct ServedModel {
  std::string name;
  int64_t context_tokens = 0;  // 0: it does not say
};

// From the answer of /v1/models. `wanted`: ExternalOptions::served_model. kInvalidArgument if it is
// empty and several are listed, kMismatch if it is not listed; both list what is. kCorrupt for
// another answer.
ServedModel find_served_model(const std::string& json, const std::string& wanted);

// From the answer of /version; kCorrupt for another.
std::string read_version(const std::string& json);

}  // namespace retort::engines::vllm
