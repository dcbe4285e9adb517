#include "base/end_process.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/log.h"

// GCC says so by macros, Clang by features.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RETORT_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RETORT_SANITIZED
#endif
#endif

namespace retort {

void end_process(int exit_code) {
  std::cerr.flush();
  drain_log();
#ifdef RETORT_SANITIZED
  std::exit(exit_code);
#else
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(exit_code);
#endif
}

}  // namespace retort
