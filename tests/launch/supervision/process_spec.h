// A process of a run, for what is told of processes that nobody starts.
#pragma once

#include <cstdint>
#include <string>

#include "launch/supervision/supervisor.h"

namespace retort::test {

inline launch::ProcessSpec process_spec(const std::string& role, int64_t rank) {
  launch::ProcessSpec result;
  result.context.role = role;
  result.context.rank = rank;
  result.driving = role == "student";
  return result;
}

}  // namespace retort::test
