// Watches collectives that run on a device. Such an operation is only queued when its call returns,
// so a peer that never comes would hang the device, and with it the thread that waits for the
// device.
//
// The watch polls the operations from a thread of its own. At the first one that fails or takes
// longer than its group's timeout, it keeps the error and aborts every group, which ends their
// kernels.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"

namespace retort::parallel::detail {

// One group as the watch sees it. Only the watch reads and writes its members.
struct WatchedGroup {
  std::string name;
  int rank = 0;  // global rank of this process in its role
  std::chrono::milliseconds timeout{0};
  c10::intrusive_ptr<c10d::Backend> backend;

  struct Operation {
    c10::intrusive_ptr<c10d::Work> work;
    std::string name, shape;
    uint64_t sequence = 0;
  };
  std::deque<Operation> running;  // in the order of the calls
  // Since when the first operation of `running` has been the first: its timeout runs from then.
  std::chrono::steady_clock::time_point front_since;
  uint64_t last_queued = 0;
  uint64_t last_completed = 0;
};

// Threads: the public members from the compute thread.
class DeviceWatch {
 public:
  explicit DeviceWatch(std::chrono::milliseconds interval = std::chrono::milliseconds(100));
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  std::shared_ptr<WatchedGroup> add_group(std::string name, int rank,
                                          std::chrono::milliseconds timeout,
                                          c10::intrusive_ptr<c10d::Backend> backend);
  // Tells the watch of an operation of the group that has just been queued.
  void add(WatchedGroup& group, WatchedGroup::Operation operation);
  // The first failure of any group: kTimeout or kCollective with group, rank, op, sequence, shape,
  // last_queued, last_completed.
  std::optional<Error> failure() const;
  // Ends the watching. Call it before the groups end: their operations can no longer be asked then.
  // Idempotent.
  void stop();

 private:
  void run();
  // One round over all groups; called with the lock held. Returns the failed operation as an error.
  std::optional<Error> poll();
  void drop_completed(WatchedGroup& group);

  const std::chrono::milliseconds interval_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<WatchedGroup>> groups_;
  std::optional<Error> failure_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all above
};

}  // namespace retort::parallel::detail
