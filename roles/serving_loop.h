// The life of a serving process: run handlers on the compute thread until told to stop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "rpc/agent.h"

namespace retort::roles {

// Calls that wait in a role's queue of handlers. Never reached: each peer has a bounded number of
// calls in flight (rpc.max_inflight_calls), so that a slow role keeps its callers waiting.
inline constexpr size_t kMaxJobs = size_t{1} << 20;

// Drains `queue` on the calling (compute) thread until `stop()` is true; checks it at least every
// 100 ms. `tick` (optional) is called about once a second with the number of jobs run so far.
// `work` (optional) is called between jobs: a piece of work of the role's own; false: nothing to
// do, so wait for jobs. After each piece of work run_jobs with `slice`: by default one job, if one
// waits. Exceptions of a job are reported to its caller by the agent, not here; those of `work` end
// the loop. Returns the number of jobs run.
int64_t run_serving_loop(rpc::HandlerQueue& queue, const std::function<bool()>& stop,
                         const std::function<void(int64_t)>& tick = {},
                         const std::function<bool()>& work = {},
                         std::chrono::milliseconds slice = {});

// Runs the job that is there within `wait`, and then those behind it, until none waits or `slice`,
// which begins with the first job, is over. Returns how many.
int64_t run_jobs(rpc::HandlerQueue& queue, std::chrono::milliseconds wait,
                 std::chrono::milliseconds slice);

}  // namespace retort::roles
