// The threads on which an agent's large transfers under TLS are sealed and opened, so that the loop
// thread, which all peers share, waits for none of them.
//
// Use: one for an agent, in its TlsContext. Its streams call start(), and post the work on their
//   large transfers if that says true; a task begins on whichever thread is free first, so that
//   several streams are served at once.
// Memory: no thread is started before the first start(), so that a process without large transfers
//   under TLS has none.
// Errors: a system that has no room for all of them (a limit of processes, memory) leaves those
//   that it had room for, and the log says so; without any the loop does the work itself.
// Ending: the destructor waits for the task that each thread is at, and drops those that have not
//   begun. A stream that has a task here keeps this object, so there are none then.
// Threads: start() and post() from any; the destructor from any but these.
#pragma once

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace retort::rpc::transport {

struct TlsThreadsOptions {
  // A thread seals or opens some 700 MB/s: four have more than a network of 20 Gbit/s. No more than
  // the machine has cores.
  size_t num_threads = std::clamp(std::thread::hardware_concurrency(), 1U, 4U);
  // Starts a thread; std::system_error where there is no room for it, which a test stands in for.
  std::function<std::thread(std::function<void()>)> start_thread = [](std::function<void()> run) {
    return std::thread(std::move(run));
  };
};

class TlsThreads {
 public:
  explicit TlsThreads(TlsThreadsOptions options = {});
  ~TlsThreads();
  TlsThreads(const TlsThreads&) = delete;
  TlsThreads& operator=(const TlsThreads&) = delete;

  // Starts the threads if that has not been tried yet. False if not one of them started: then
  // nobody runs what is posted, now or later.
  bool start();

  // Runs `task`, which throws nothing and waits for nothing, on one of the threads. start() has
  // said true.
  template <class Task>
  void post(Task task) {
    boost::asio::post(tasks_, std::move(task));
  }

 private:
  void start_all();

  const TlsThreadsOptions options_;
  boost::asio::io_context tasks_;
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::once_flag tried_;
  std::vector<std::thread> threads_;
};

}  // namespace retort::rpc::transport
