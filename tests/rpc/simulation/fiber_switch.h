// Says to the address sanitizer that a thread of the system goes on on another stack. It marks the
// bytes around each variable of a stack, and takes the marks off when an exception passes; so it
// must know where the stack is that is in use. Without that sanitizer: nothing.
//
//   before swapcontext:                       leave(&mine, bytes of the other stack);
//   at the first line that runs on a stack:   arrive(mine), which says whose stack was left
#pragma once

#include <cstddef>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace retort::rpc::simulation {

struct StackMemory {
  const void* bottom = nullptr;
  size_t bytes = 0;
};

// What the sanitizer keeps of a stack that is left, until it is used again.
struct LeftStack {
  void* kept = nullptr;
};

// `left` is null for a stack that will not be used again.
inline void leave(LeftStack* left, const StackMemory& next) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(left ? &left->kept : nullptr, next.bottom, next.bytes);
#endif
}

// Returns the stack that was left for this one; empty without the sanitizer.
inline StackMemory arrive(const LeftStack& here) {
  StackMemory from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(here.kept, &from.bottom, &from.bytes);
#endif
  return from;
}

}  // namespace retort::rpc::simulation
