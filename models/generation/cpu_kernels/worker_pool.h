// Threads for the many short parallel parts of a step. Private to models/.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace retort::models {

// Work is cut into chunks that whoever is free takes, the caller among them, and the caller waits
// for chunks, not for threads: a thread that the system has not scheduled holds nobody up. (A
// barrier over all threads, as OpenMP has it, makes parts of some microseconds many times slower as
// soon as another process wants a core.) Idle threads look for work for a moment and then sleep.
// One thread at a time may call run.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);  // the caller's included; at least 1
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // f(begin, end, thread) over pieces of [0, count) of at least `grain`, thread in [0, threads()).
  // Which pieces and on which thread is not determined. Rethrows the exception of the last piece
  // that threw one.
  void run(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& f);

 private:
  void work(const std::stop_token& stop, int thread);
  bool take_chunk(int thread);

  // These describe the current run. They are written while no chunk is left, and read by whoever
  // holds one.
  const std::function<void(int64_t, int64_t, int)>* body_ = nullptr;
  int64_t count_ = 0;
  int64_t chunk_ = 0;
  // chunks of the run that nobody has taken; 0: wait for the next run; kStop: end
  alignas(64) std::atomic<uint32_t> chunks_left_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<uint32_t> sleeping_{0};  // workers that the next run has to wake
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::jthread> workers_;
};

}  // namespace retort::models
