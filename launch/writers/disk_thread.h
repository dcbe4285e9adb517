// A file system that does not answer (NFS whose server is gone) must not hold the thread that
// answers heartbeats: it is asked by another thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "base/deadline.h"

namespace retort::launch {

// Does one job at a time on a thread of its own. The caller starts the next one when the one before
// is done, and waits for it as long as it likes.
//
// A job shares nothing with its caller but what it holds itself: one that hangs outlives this
// object. It must not throw.
// Threads: one caller.
class DiskThread {
 public:
  DiskThread();
  // Does not wait for a job that hangs: its thread ends by itself when that returns.
  ~DiskThread();
  DiskThread(const DiskThread&) = delete;
  DiskThread& operator=(const DiskThread&) = delete;

  bool idle() const;
  // Starts a job; only while idle.
  void start(std::function<void()> job);
  // Waits until idle; false at the deadline.
  bool wait(Deadline deadline) const;
  // The same for at most `patience`, but not at all after a wait for this job in vain: who asks
  // every tick loses that time once.
  bool wait_a_while(std::chrono::milliseconds patience);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
  std::thread thread_;
  bool stalls_ = false;
};

}  // namespace retort::launch
