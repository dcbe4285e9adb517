// What a serving process has answered, in its log.
#pragma once

#include "rpc/agent.h"

namespace retort::launch {

// One line for each method and role that called it: calls, times, bytes.
void log_served_calls(const rpc::Agent& agent);

}  // namespace retort::launch
