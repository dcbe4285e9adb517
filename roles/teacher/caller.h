// Whoever made a call that is answered later.
#pragma once

#include "rpc/agent.h"

namespace retort::roles {

// Whether the caller is there to read an answer: it did not cancel, it was not lost, and its
// deadline has not passed.
inline bool still_waits(const rpc::CallContext& caller) {
  return !caller.cancelled->load() && !caller.deadline.expired();
}

}  // namespace retort::roles
