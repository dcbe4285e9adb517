#include "parallel/detail/connect_in_time.h"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace retort::parallel::detail {
namespace {

// What the two threads share, for as long as one of them lives.
struct Connecting {
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::exception_ptr failure;
};

// Gives the error time to end the process in order, which may wait for the thread that was left in
// the driver: then it ends here.
void end_unless_back(const std::shared_ptr<Connecting>& state, LeavingOptions leaving,
                     const std::string& where) {
  if (!leaving.exit_process) leaving.exit_process = [] { ::_exit(1); };
  std::thread([state, leaving = std::move(leaving), where] {
    std::unique_lock lock(state->mutex);
    if (state->wake.wait_for(lock, leaving.exit_limit, [&] { return state->done; })) return;
    lock.unlock();
    RETORT_LOG(kError) << "the call that connects devices has not come back within "
                       << leaving.exit_limit.count()
                       << " ms after it had timed out, so this process ends: " << where;
    leaving.exit_process();
  }).detach();
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> connect_in_time(std::shared_ptr<DeviceModule> module,
                                                  DeviceGroupSpec group,
                                                  c10::intrusive_ptr<c10d::Store> store,
                                                  std::chrono::milliseconds limit,
                                                  LeavingOptions leaving) {
  const auto state = std::make_shared<Connecting>();
  const std::string timed_out =
      "timed out: not all of the group's " + std::to_string(group.ranks.size()) +
      " ranks have connected their devices within " + std::to_string(limit.count()) +
      " ms; look for one that has ended, or raise launch.collective_timeout";

  const std::string name = group.name;
  std::thread connecting(
      [state, module = std::move(module), group = std::move(group), store = std::move(store)] {
        c10::intrusive_ptr<c10d::Backend> backend;
        std::exception_ptr failure;
        try {
          module->backends().use_device_in_thread();
          backend = module->backends().connect(group, store);
        } catch (...) {
          failure = std::current_exception();
        }
        const std::lock_guard lock(state->mutex);
        state->backend = std::move(backend);
        state->failure = failure;
        state->done = true;
        state->wake.notify_all();
      });

  std::unique_lock lock(state->mutex);
  if (!state->wake.wait_for(lock, limit, [&] { return state->done; })) {
    connecting.detach();
    end_unless_back(state, std::move(leaving), "group=" + name);
    throw Error(ErrorCode::kTimeout, timed_out);
  }
  lock.unlock();
  connecting.join();
  if (state->failure) std::rethrow_exception(state->failure);
  return std::move(state->backend);
}

}  // namespace retort::parallel::detail
