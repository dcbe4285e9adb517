#include "roles/serving_loop.h"

namespace retort::roles {

int64_t run_serving_loop(rpc::HandlerQueue& queue, const std::function<bool()>& stop,
                         const std::function<void(int64_t)>& tick,
                         const std::function<bool()>& work) {
  using namespace std::chrono_literals;
  int64_t jobs = 0;
  auto next_tick = Deadline::Clock::now() + 1s;
  while (!stop() && !queue.closed()) {
    const bool busy = work && work();
    if (auto job = queue.pop(Deadline::after(busy ? 0ms : 100ms))) {
      (*job)();
      ++jobs;
    }
    if (tick && Deadline::Clock::now() >= next_tick) {
      tick(jobs);
      next_tick = Deadline::Clock::now() + 1s;
    }
  }
  return jobs;
}

}  // namespace retort::roles
