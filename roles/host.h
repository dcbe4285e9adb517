// The life of a serving process: run handlers on the compute thread until told to stop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "rpc/agent.h"

namespace retort::roles {

// Drains `queue` on the calling (compute) thread until `stop()` is true; checks it at least every 100 ms.
// `tick` (optional) is called about once a second with the number of jobs run so far. Exceptions of a job are reported to its
// caller by the agent, not here. Returns the number of jobs run.
int64_t host(rpc::HandlerQueue& queue, const std::function<bool()>& stop, const std::function<void(int64_t)>& tick = {});

}  // namespace retort::roles
