// The threads on which an agent's large transfers under TLS are sealed and opened, so that the loop
// thread, which all peers share, waits for none of them.
//
// Use: one for an agent, in its TlsContext. Its streams post the work on their large transfers;
//   a task begins on whichever thread is free first, so that several streams are served at once.
// Memory: no thread is started before the first task, so that a process without large transfers
//   under TLS has none.
// Ending: the destructor waits for the task that each thread is at, and drops those that have not
//   begun. A stream that has a task here keeps this object, so there are none then.
// Threads: post() from any.
#pragma once

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "rpc/detail/sigpipe_block.h"

namespace retort::rpc::transport {

struct TlsThreadsOptions {
  // A thread seals or opens some 700 MB/s: four have more than a network of 20 Gbit/s. No more than
  // the machine has cores.
  size_t num_threads = std::clamp(std::thread::hardware_concurrency(), 1U, 4U);
};

class TlsThreads {
 public:
  explicit TlsThreads(TlsThreadsOptions options = {}) : options_(options) {
    RETORT_CHECK(options_.num_threads > 0) << "TLS needs a thread, or no TlsThreads at all";
  }
  TlsThreads(const TlsThreads&) = delete;
  TlsThreads& operator=(const TlsThreads&) = delete;

  // Runs `task`, which throws nothing and waits for nothing, on one of the threads.
  template <class Task>
  void post(Task task) {
    std::call_once(started_, [this] {
      rpc::detail::SigpipeBlock no_sigpipe;  // which the threads inherit
      threads_.emplace(options_.num_threads);
    });
    boost::asio::post(*threads_, std::move(task));
  }

 private:
  const TlsThreadsOptions options_;
  std::once_flag started_;
  std::optional<boost::asio::thread_pool> threads_;
};

}  // namespace retort::rpc::transport
