// The end of a serving process, and what it has answered, in its log.
#pragma once

#include "rpc/agent.h"

namespace retort::launch {

// Takes no more calls, says goodbye to all peers, and logs a line for each method and role that
// called it: calls, times, bytes.
void end_serving(rpc::HandlerQueue& queue, rpc::Agent& agent);

}  // namespace retort::launch
