#include "launch/backends/role_variables.h"

#include <cstdlib>

#include "parallel/nccl_variables.h"

namespace retort::launch {

namespace {

// What libraries of devices read from the environment. emplace() leaves a variable alone that the
// recipe sets for the role.
void add_for_devices(const recipes::Recipe& recipe, const recipes::RoleOptions& role,
                     std::map<std::string, std::string>& variables) {
  if (recipe.deterministic)
    variables.emplace("CUBLAS_WORKSPACE_CONFIG", ":4096:8");  // cuBLAS: one workspace a stream

  // The interface is known where the process listens (launch/ranks/rank_command.cc).
  parallel::NcclOptions nccl{
      .interface = "", .deterministic = recipe.deterministic, .layout = role.world};
  if (&role != &recipe.student()) nccl.layout.dp = 1;  // replicas of a serving role
  for (const auto& [name, value] : parallel::nccl_variables(nccl))
    variables.emplace(name, value);
}

}  // namespace

std::map<std::string, std::string> role_variables(const recipes::Recipe& recipe,
                                                  const recipes::RoleOptions& role) {
  std::map<std::string, std::string> variables = role.env;
  // Empty is a value too: an empty CUDA_VISIBLE_DEVICES hides all devices.
  for (const std::string& name : role.env_elsewhere)
    if (std::getenv(name.c_str()) == nullptr) variables.erase(name);

  // Text is what a process writes unless its environment says otherwise.
  if (recipe.launch.log_format == LogFormat::kJson) variables.emplace("RETORT_LOG_FORMAT", "json");
  if (role.world.device == parallel::Device::kCuda) add_for_devices(recipe, role, variables);
  return variables;
}

}  // namespace retort::launch
