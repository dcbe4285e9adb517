// Watches collectives that run on a device. Such an operation is only queued when its call returns,
// so a peer that never comes would hang the device, and with it the thread that waits for the
// device.
//
// At the first operation that fails or takes longer than its group's timeout, the watch keeps the
// error and aborts all groups at once, which ends their kernels. What the aborts cannot free, a
// thread that stands in a call of the driver, ends with the process.
//
// Threads: any call of the driver, even the destructor of a work, can wait for the kernel that
// hangs (the first launch of a kernel loads it, and waits with the context's lock held). So each
// thread of the watch waits for at most one thing:
//
//   thread    asks the device                     waits for
//   asking    whether the first operations        the device, without limit
//             have completed                      (without the lock)
//   clock     never                               the others, at most exit_limit
//   aborting  to end all kernels                  the device, without limit (without the lock)
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "parallel/detail/device_backends.h"

namespace retort::parallel::detail {

// One group as the watch sees it. Only the watch reads and writes its members.
struct WatchedGroup {
  std::string name;
  int rank = 0;  // global rank of this process in its role
  std::chrono::milliseconds timeout{0};
  c10::intrusive_ptr<c10d::Backend> backend;

  struct Operation {
    c10::intrusive_ptr<c10d::Work> work;  // null while the call that queues it is under way
    std::string name, shape;
    uint64_t sequence = 0;
  };
  std::deque<Operation> running;  // in the order of the calls
  // Since when the first operation of `running` has been the first: its timeout runs from then.
  std::chrono::steady_clock::time_point front_since;
  uint64_t last_queued = 0;
  uint64_t last_completed = 0;
};

struct DeviceWatchOptions {
  std::chrono::milliseconds interval{100};
  // After a failure: how long the abort may take, and then the compute thread to come back to the
  // watch. The process ends otherwise.
  std::chrono::milliseconds exit_limit{30'000};
  // Ends the process with code 1, and neither destructors nor handlers, which could wait for the
  // device too. Tests replace it.
  std::function<void()> exit_process;
};

// Threads: the public members from the compute thread, failure() from any.
class DeviceWatch {
 public:
  // `backends` must live until the watch has ended.
  explicit DeviceWatch(DeviceBackends& backends, DeviceWatchOptions options = {});
  // Ends the watching only.
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  std::shared_ptr<WatchedGroup> add_group(std::string name, int rank,
                                          std::chrono::milliseconds timeout,
                                          c10::intrusive_ptr<c10d::Backend> backend);
  // Tells the watch of an operation of the group that has just been queued.
  void add(WatchedGroup& group, WatchedGroup::Operation operation);
  // The same in two parts, around the call that queues it. That call can hang itself: NCCL connects
  // the members of a group in their first operation. withdraw() instead of queued(): it has thrown.
  void begin(WatchedGroup& group, WatchedGroup::Operation operation);
  void queued(WatchedGroup& group, c10::intrusive_ptr<c10d::Work> work);
  void withdraw(WatchedGroup& group);
  // The first failure of any group: kTimeout or kCollective with group, rank, op, sequence, shape,
  // last_queued, last_completed. Who asks has come back.
  std::optional<Error> failure() const;
  // Ends the watching: nothing is asked any more. Idempotent.
  void stop();
  // Ends the watching and the groups: in order, which waits for the other ranks, or by an abort
  // where `failed` says so or the others do not end too. They may be late by the longer of the
  // groups' timeouts and exit_limit; an abort that takes longer than exit_limit ends the process.
  // Idempotent.
  void end(bool failed);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void ask();
  void ask_group(WatchedGroup& group, Lock& lock);
  void keep_time();
  void abort_when_told();
  // Those below are called with the lock held.
  void judge_time();
  void come_back() const;
  bool request_abort(Lock& lock);  // false: it has not come back
  void shut_down(Lock& lock);
  void end_process(Lock& lock, const std::string& why);

  DeviceBackends& backends_;
  const DeviceWatchOptions options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable wake_;  // of whatever changes below
  std::vector<std::shared_ptr<WatchedGroup>> groups_;
  std::optional<Error> failure_;
  // Since when the asking thread has been in a call that can wait for the device.
  std::optional<std::chrono::steady_clock::time_point> asking_since_;
  mutable bool came_back_ = false;  // the compute thread, after the failure
  bool stop_ = false;
  bool asked_last_ = false;  // the asking thread has ended
  bool abort_requested_ = false;
  bool aborted_ = false;
  bool ended_ = false;                     // by end()
  bool finished_ = false;                  // nothing is left to abort
  std::thread asking_, clock_, aborting_;  // last: they use all above
};

}  // namespace retort::parallel::detail
