#include "base/freed_memory.h"

#include <malloc.h>

#include <limits>

#include "base/error.h"

namespace retort {

void keep_freed_memory() {
  constexpr int kLargestPiece = 1 << 30;
  constexpr int kLargestEnd = std::numeric_limits<int>::max();
  if (::mallopt(M_MMAP_THRESHOLD, kLargestPiece) != 1 ||
      ::mallopt(M_TRIM_THRESHOLD, kLargestEnd) != 1)
    throw Error(ErrorCode::kUnavailable, "the C library does not let its allocator be set");
}

}  // namespace retort
