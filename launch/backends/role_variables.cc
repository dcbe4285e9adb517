#include "launch/backends/role_variables.h"

#include <cstdlib>

namespace retort::launch {

std::map<std::string, std::string> role_variables(const recipes::Recipe& recipe,
                                                  const recipes::RoleOptions& role) {
  std::map<std::string, std::string> variables = role.env;
  // Empty is a value too: an empty CUDA_VISIBLE_DEVICES hides all devices.
  for (const std::string& name : role.env_elsewhere)
    if (std::getenv(name.c_str()) == nullptr) variables.erase(name);

  // Text is what a process writes unless its environment says otherwise.
  if (recipe.launch.log_format == LogFormat::kJson) variables.emplace("RETORT_LOG_FORMAT", "json");
  // emplace() leaves a variable alone that the recipe sets for the role.
  if (recipe.deterministic && role.world.device == parallel::Device::kCuda) {
    variables.emplace("CUBLAS_WORKSPACE_CONFIG", ":4096:8");  // cuBLAS: one workspace a stream
    variables.emplace("NCCL_ALGO", "Ring");  // NCCL: sums in one order, whatever it tunes
  }
  return variables;
}

}  // namespace retort::launch
