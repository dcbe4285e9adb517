// Whoever made a call that is answered later.
#pragma once

#include "rpc/agent.h"

namespace retort::roles {

// True if the caller is there to read an answer: it did not cancel and was not lost.
inline bool still_waits(const rpc::CallContext& caller) { return !caller.cancelled->load(); }

}  // namespace retort::roles
