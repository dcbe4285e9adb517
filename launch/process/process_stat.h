// What the system says of a process, which may end at any time.
#pragma once

#include <sys/types.h>

#include <istream>
#include <optional>

namespace retort::launch {

struct ProcessStat {
  pid_t parent = 0;
  pid_t group = 0;
};

// From /proc/<pid>/stat, "17 (any name) S parent group ...": the name may hold anything. nullopt if
// the process has ended, also after the file was opened.
std::optional<ProcessStat> read_process_stat(std::istream& file);

}  // namespace retort::launch
