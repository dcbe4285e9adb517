// How a process of a run is called, everywhere: in calls, logs, metrics and messages.
#pragma once

#include <cstdint>
#include <string>

namespace retort {

// "teacher/0": rank 0 of the role teacher.
inline std::string process_name(const std::string& role, int64_t rank) {
  return role + "/" + std::to_string(rank);
}

}  // namespace retort
