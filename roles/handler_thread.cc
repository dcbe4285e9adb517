#include "roles/handler_thread.h"

#include <chrono>

#include "base/deadline.h"
#include "roles/serving_loop.h"
#include "rpc/device_transfer.h"

namespace retort::roles {
namespace {

void run_jobs(rpc::HandlerQueue& queue) {
  while (!queue.closed())
    if (auto job = queue.pop(Deadline::after(std::chrono::seconds(1)))) (*job)();
}

}  // namespace

HandlerThread::HandlerThread()
    : queue_(std::make_shared<rpc::HandlerQueue>(kMaxJobs)),
      thread_([queue = queue_] { run_jobs(*queue); }) {}

void HandlerThread::use_device(const at::Device& device) {
  if (device.is_cpu()) return;
  queue_->push([device] { rpc::use_device_in_thread(device); },
               Deadline::after(std::chrono::seconds(60)));
}

HandlerThread::~HandlerThread() {
  queue_->close();
  thread_.join();
}

}  // namespace retort::roles
