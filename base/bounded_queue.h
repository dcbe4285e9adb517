// How threads hand work to each other: a bounded queue with any number of producers and consumers.
// A full queue makes its producers wait; it never drops an item.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"

namespace retort {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { RETORT_CHECK(capacity > 0); }

  // Waits for room. Throws kTimeout at the deadline, kClosed once closed.
  void push(T value, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!room_.wait_until(lock, deadline.time(),
                          [&] { return closed_ || items_.size() < capacity_; }))
      throw Error(ErrorCode::kTimeout, "queue stayed full until the deadline")
          .with("capacity", capacity_);
    if (closed_) throw Error(ErrorCode::kClosed, "queue is closed");
    items_.push_back(std::move(value));
    lock.unlock();
    filled_.notify_one();
  }

  // False if full or closed; never waits.
  bool try_push(T value) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    filled_.notify_one();
    return true;
  }

  // The next item; nullopt at the deadline, or when closed and drained (closed() tells which).
  std::optional<T> pop(Deadline deadline) {
    std::unique_lock lock(mutex_);
    filled_.wait_until(lock, deadline.time(), [&] { return closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    std::optional<T> value(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    room_.notify_one();
    return value;
  }

  // Refuses new items and wakes every waiter; items already accepted can still be popped.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    room_.notify_all();
    filled_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable room_, filled_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace retort
