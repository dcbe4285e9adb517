#include "launch/join/carried_variables.h"

#include <cstdlib>
#include <string_view>

#include "base/process/exec_arguments.h"

namespace retort::launch {
namespace {

constexpr std::string_view kCarried = "RETORT_ENV_";

}  // namespace

std::map<std::string, std::string> carried_variables(
    const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::string> carried;
  for (const auto& [name, value] : variables)
    carried.emplace(std::string(kCarried) + name, value);
  return carried;
}

void take_carried_variables() {
  for (const std::string& entry : own_environment()) {
    const size_t equals = entry.find('=');
    if (!entry.starts_with(kCarried) || equals == std::string::npos || equals == kCarried.size())
      continue;
    const std::string carried = entry.substr(0, equals);
    ::setenv(carried.substr(kCarried.size()).c_str(), entry.substr(equals + 1).c_str(), 1);
    ::unsetenv(carried.c_str());
  }
}

}  // namespace retort::launch
