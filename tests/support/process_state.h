// Whether another process runs.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <optional>
#include <string>

namespace retort::test {

// As `ps` says it: 'T' is held by a stop signal, 'Z' a zombie; nullopt: there is none.
inline std::optional<char> process_state(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return std::nullopt;
  return text[name_end + 2];
}

// Whether a process runs; a zombie that nobody has waited for does not.
inline bool process_runs(pid_t pid) {
  const auto state = process_state(pid);
  return state && *state != 'Z';
}

}  // namespace retort::test
