// What this process holds, as /proc says.
#pragma once

#include <cstdint>

namespace retort::bench {

struct Usage {
  int64_t sockets = 0, descriptors = 0, threads = 0;
  double core_seconds = 0;  // of all its threads, in the system too
  double mib = 0;           // resident
};

Usage usage_of_this_process();
// As many descriptors as this process may have: with all ranks in few processes, each has many.
void raise_descriptor_limit();

}  // namespace retort::bench
