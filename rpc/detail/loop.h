// The agent's one thread: an asio io_context that everything except handlers and TensorPipe's own
// threads runs on.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/future.h"
#include "rpc/detail/sigpipe_block.h"

namespace retort::rpc::detail {

class Loop {
 public:
  Loop() : work_(boost::asio::make_work_guard(io_)) {}

  boost::asio::io_context& io() { return io_; }
  void start() {
    thread_ = std::thread([this] {
      future_detail::LoopThreadScope scope;
      SigpipeBlock no_sigpipe;
      io_.run();  // a handler that throws is a bug and ends the process
    });
  }

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
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    work_.reset();
    if (thread_.joinable()) thread_.join();
  }

 private:
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace retort::rpc::detail
