#include "launch/writers/disk_thread.h"

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace retort::launch {

struct DiskThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  // What follows is under the mutex.
  std::function<void()> job;  // the thread takes it when it has done it
  bool closed = false;

  void run();
};

void DiskThread::State::run() {
  // Signals are for other threads.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);

  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return closed || job; });
    // A job that was given is done even where its owner has closed meanwhile.
    if (!job) return;
    lock.unlock();
    job();
    lock.lock();
    job = nullptr;
    changed.notify_all();
  }
}

DiskThread::DiskThread() : state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_] { state->run(); });
}

DiskThread::~DiskThread() {
  bool works = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    works = state_->job != nullptr;
    state_->changed.notify_all();
  }

  // A thread inside a job that may never return cannot be waited for.
  if (works)
    thread_.detach();
  else
    thread_.join();
}

bool DiskThread::idle() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->job;
}

void DiskThread::start(std::function<void()> job) {
  const std::lock_guard lock(state_->mutex);
  RETORT_CHECK(!state_->job) << "the disk thread has a job";
  state_->job = std::move(job);
  stalls_ = false;
  state_->changed.notify_all();
}

bool DiskThread::wait(Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline.time(), [&] { return !state_->job; });
}

bool DiskThread::wait_a_while(std::chrono::milliseconds patience) {
  stalls_ = stalls_ ? !idle() : !wait(Deadline::after(patience));
  return !stalls_;
}

}  // namespace retort::launch
