#include "models/generation/cpu_kernels/worker_pool.h"

#include <algorithm>
#include <utility>

namespace retort::models {
namespace {

constexpr int kSpins = 4000;  // looks for work before a thread sleeps, about 100 us
constexpr int64_t kChunksPerThread = 4;
constexpr uint32_t kStop = UINT32_MAX;  // of chunks_left_

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

WorkerPool::WorkerPool(int threads) {
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this, i](const std::stop_token& stop) { work(stop, i); });
  }
}

WorkerPool::~WorkerPool() {
  for (std::jthread& worker : workers_)
    worker.request_stop();
  // Workers sleep while chunks_left_ is 0: any other value wakes them.
  chunks_left_.store(kStop);
  chunks_left_.notify_all();
}

// Takes and runs one chunk. A chunk that was taken keeps the run open, so its fields may be read.
bool WorkerPool::take_chunk(int thread) {
  uint32_t left = chunks_left_.load(std::memory_order_acquire);
  do {
    if (left == 0 || left == kStop) return false;
  } while (!chunks_left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel,
                                               std::memory_order_acquire));
  const int64_t begin = (static_cast<int64_t>(left) - 1) * chunk_;
  try {
    (*body_)(begin, std::min(begin + chunk_, count_), thread);
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    error_ = std::current_exception();
  }
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

// Looks for chunks, at first without a pause, because the next run of a step usually begins within
// microseconds; then sleeps until chunks_left_ is not 0: a run has begun, or the pool ends.
void WorkerPool::work(const std::stop_token& stop, int thread) {
  for (int idle = 0; !stop.stop_requested();) {
    if (take_chunk(thread)) {
      idle = 0;
    } else if (++idle < kSpins) {
      pause();
    } else {
      sleeping_.fetch_add(1);
      chunks_left_.wait(0);
      sleeping_.fetch_sub(1);
      idle = 0;
    }
  }
}

void WorkerPool::run(int64_t count, int64_t grain,
                     const std::function<void(int64_t, int64_t, int)>& f) {
  if (count <= 0) return;
  // More pieces than threads, so that a slow thread does not hold the others up.
  const int64_t pieces =
      std::min(kChunksPerThread * threads(), count / std::max<int64_t>(1, grain));
  if (workers_.empty() || pieces <= 1) {
    f(0, count, 0);
    return;
  }

  // The store to chunks_left_ opens the run: the fields before it are seen by whoever takes a
  // chunk.
  body_ = &f;
  count_ = count;
  chunk_ = (count + pieces - 1) / pieces;
  const auto chunks = static_cast<uint32_t>((count + chunk_ - 1) / chunk_);
  done_.store(0, std::memory_order_relaxed);
  chunks_left_.store(chunks);
  if (sleeping_.load() > 0) chunks_left_.notify_all();

  // The caller works too, and then waits for the chunks that others took.
  while (take_chunk(0)) {
  }
  for (int spins = 0; done_.load(std::memory_order_acquire) != chunks; ++spins) {
    if (spins < 1000) {
      pause();
    } else {
      std::this_thread::yield();  // perhaps to the one that is waited for
    }
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace retort::models
