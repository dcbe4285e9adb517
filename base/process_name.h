// How a process of a run is called, everywhere: in calls, logs, metrics and messages.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace retort {

// "teacher/0": rank 0 of the role teacher.
inline std::string process_name(const std::string& role, int64_t rank) {
  return role + "/" + std::to_string(rank);
}

// "teacher/0" -> "teacher"; a name without a rank as it is.
inline std::string role_of(const std::string& name) { return name.substr(0, name.find('/')); }

// "teacher/0" -> {"teacher", 0}; kInvalidArgument if it is no such name.
inline std::pair<std::string, int64_t> role_and_rank(const std::string& name) {
  const size_t slash = name.rfind('/');
  const bool digits = slash != std::string::npos && slash > 0 && slash + 1 < name.size() &&
                      name.size() - slash < 12 &&
                      name.find_first_not_of("0123456789", slash + 1) == std::string::npos;
  if (!digits) throw Error(ErrorCode::kInvalidArgument, "'" + name + "' names no process");
  return {name.substr(0, slash), std::stoll(name.substr(slash + 1))};
}

}  // namespace retort
