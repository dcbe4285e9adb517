#include "engines/vllm/version.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engines/json_object.h"

namespace retort::engines::vllm {

std::string read_version(const std::string& json) {
  const nlohmann::json answer = json_object(json, "/version");
  const auto version = answer.find("version");
  if (version == answer.end() || !version->is_string())
    throw Error(ErrorCode::kCorrupt, "/version: the answer has no version");
  return version->get<std::string>();
}

}  // namespace retort::engines::vllm
