#include "base/malloc_tuning.h"

#include <malloc.h>

#include <limits>

namespace retort {

void keep_freed_memory() {
  // glibc 2.34 takes no more than half of an arena, 32 MiB.
  constexpr int kLargestPiece = 1 << 30, kHalfAnArena = 32 << 20;
  constexpr int kLargestEnd = std::numeric_limits<int>::max();
  if (::mallopt(M_MMAP_THRESHOLD, kLargestPiece) != 1) ::mallopt(M_MMAP_THRESHOLD, kHalfAnArena);
  ::mallopt(M_TRIM_THRESHOLD, kLargestEnd);
}

}  // namespace retort
