#include "roles/serving_loop.h"

namespace retort::roles {

int64_t run_jobs(rpc::HandlerQueue& queue, std::chrono::milliseconds wait,
                 std::chrono::milliseconds slice) {
  int64_t jobs = 0;
  auto job = queue.pop(Deadline::after(wait));
  // Only the first job is waited for. The slice bounds those behind it, so that a flood of calls
  // leaves the role's own work its turn.
  const Deadline end = Deadline::after(slice);
  while (job) {
    (*job)();
    ++jobs;
    if (end.expired()) break;
    job = queue.pop(Deadline::after(std::chrono::milliseconds(0)));
  }
  return jobs;
}

int64_t run_serving_loop(rpc::HandlerQueue& queue, const std::function<bool()>& stop,
                         const std::function<void(int64_t)>& tick,
                         const std::function<bool()>& work, std::chrono::milliseconds slice) {
  using namespace std::chrono_literals;
  int64_t jobs = 0;
  auto next_tick = Deadline::Clock::now() + 1s;
  while (!stop() && !queue.closed()) {
    // A role that has more work does not wait for calls between two pieces of it.
    const bool busy = work && work();
    jobs += run_jobs(queue, busy ? 0ms : 100ms, slice);
    if (tick && Deadline::Clock::now() >= next_tick) {
      tick(jobs);
      next_tick = Deadline::Clock::now() + 1s;
    }
  }
  return jobs;
}

}  // namespace retort::roles
