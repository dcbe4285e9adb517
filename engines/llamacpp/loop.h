// The thread on which everything of one adapter runs, and its timers.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "base/deadline.h"
#include "base/future.h"

namespace retort::engines::llamacpp {

class Loop {
 public:
  Loop();
  // Must run on another thread. Pauses end with kClosed; what was posted before still runs.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  boost::asio::io_context& io() { return io_; }

  // Any thread. `fn` must neither block nor throw.
  void post(std::function<void()> fn);
  // Until `at`. On the loop's thread; cancel() from any.
  Future<Empty> pause_until(Deadline at);

 private:
  using Timer = boost::asio::steady_timer;

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::set<std::shared_ptr<Timer>> timers_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace retort::engines::llamacpp
