// Work that is done one value ahead of whoever takes the values.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <utility>

namespace retort::data::detail {

// Calls `make` for one value after the other, each on a thread that ends with it, and as soon as
// the value before has been taken. Nothing is made before the first next().
//
// `make` must not use LibTorch or collectives, and what it uses belongs to it until settle() or the
// next next().
// Threads: one takes the values.
template <class T>
class Prefetcher {
 public:
  explicit Prefetcher(std::function<T()> make) : make_(std::move(make)) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  // Waits for the value that is being made.
  ~Prefetcher() = default;

  // The next value; waits until it is there. What `make` threw for it is thrown here, and nothing
  // is made ahead then.
  T next() {
    const auto begin = std::chrono::steady_clock::now();
    if (!coming_.valid()) start();
    // If this throws, nothing is started: the next call tries again.
    T value = coming_.get();
    waited_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    start();
    return value;
  }
  // Seconds that the last next() waited.
  double waited() const { return waited_; }
  // Waits until nothing is being made.
  void settle() const {
    if (coming_.valid()) coming_.wait();
  }

 private:
  void start() { coming_ = std::async(std::launch::async, make_); }

  std::function<T()> make_;
  double waited_ = 0;
  std::future<T> coming_;  // destroyed first: waits for its thread
};

}  // namespace retort::data::detail
