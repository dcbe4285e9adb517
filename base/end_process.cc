#include "base/end_process.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace retort {

void end_process(int exit_code) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(exit_code);
#else
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(exit_code);
#endif
}

}  // namespace retort
