// A pipe whose ends close themselves.
#pragma once

#include "base/process/owned_fd.h"

namespace retort {

struct Pipe {
  OwnedFd out, in;  // what is written to `in` is read from `out`
};

// Both ends close on exec. kResourceExhausted when the system has no descriptor left.
Pipe make_pipe();

}  // namespace retort
