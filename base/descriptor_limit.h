// How many files and sockets this process may have open.
#pragma once

#include <cstdint>

namespace retort {

// Raises the limit as far as the system allows without privileges (RLIMIT_NOFILE, soft to hard),
// also for processes that are started later. A run of thousands of processes needs some
// connections for each of them; the soft limit is 1,024 on most systems. Returns the limit.
uint64_t raise_descriptor_limit();

}  // namespace retort
