// The agent's one thread: an asio io_context that everything except handlers and TensorPipe's own
// threads runs on. It sleeps when nothing is left to do, or looks on for a while first.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/future.h"
#include "rpc/loop/sigpipe_block.h"

namespace retort::rpc::detail {

class Loop {
 public:
  // `spin`: RpcOptions::spin.
  explicit Loop(std::chrono::microseconds spin = {})
      : spin_(spin), work_(boost::asio::make_work_guard(io_)) {}
  virtual ~Loop() = default;

  boost::asio::io_context& io() { return io_; }
  virtual void start() {
    thread_ = std::thread([this] {
      future_detail::LoopThreadScope scope;
      SigpipeBlock no_sigpipe;
      run();  // a handler that throws is a bug and ends the process
    });
  }

  // How often the thread looked for an event in vain instead of sleeping. Any thread.
  uint64_t vain_looks() const { return vain_looks_.load(std::memory_order_relaxed); }

  // Runs `task` on the loop thread. False, and `task` never runs, once stop() was called. Any
  // thread; never runs inline.
  template <class Task>
  bool post(Task task) {
    std::lock_guard lock(mutex_);
    if (stopped_) return false;
    boost::asio::post(io_, std::move(task));
    return true;
  }

  // Lets what was posted finish, then ends the thread. Not on the loop thread.
  virtual void stop() {
    end_work();
    if (thread_.joinable()) thread_.join();
  }

 protected:
  // post() takes nothing any more, and io() runs out of work.
  void end_work() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    work_.reset();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void run() {
    if (spin_.count() == 0) {
      io_.run();
      return;
    }
    while (!io_.stopped()) {
      auto last_event = Clock::now();
      while (Clock::now() - last_event < spin_ && !io_.stopped()) {
        if (io_.poll() > 0)
          last_event = Clock::now();
        else
          vain_looks_.fetch_add(1, std::memory_order_relaxed);
      }
      io_.run_one();  // sleeps until there is one; nothing once stopped
    }
  }

  const std::chrono::microseconds spin_;
  std::atomic<uint64_t> vain_looks_{0};
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace retort::rpc::detail
