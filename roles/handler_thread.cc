#include "roles/handler_thread.h"

#include <chrono>

#include "roles/serving_loop.h"

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

HandlerThread::~HandlerThread() {
  queue_->close();
  thread_.join();
}

}  // namespace retort::roles
