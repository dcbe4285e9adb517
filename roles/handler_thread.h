// A thread that runs handlers of remote calls beside the compute thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <thread>

#include "rpc/agent.h"

namespace retort::roles {

// For calls that must not wait for the compute thread, which draws, or waits in collectives. Runs
// the jobs of its queue until it is destroyed; then the queue is closed, and a job that runs is
// finished.
class HandlerThread {
 public:
  HandlerThread();
  ~HandlerThread();
  HandlerThread(const HandlerThread&) = delete;
  HandlerThread& operator=(const HandlerThread&) = delete;

  const std::shared_ptr<rpc::HandlerQueue>& queue() const { return queue_; }
  // Makes this device the thread's own, before the jobs that are pushed from now on. Nothing for
  // the CPU.
  void use_device(const at::Device& device);

 private:
  std::shared_ptr<rpc::HandlerQueue> queue_;
  std::thread thread_;
};

}  // namespace retort::roles
