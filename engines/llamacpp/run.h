// A request of a caller's that takes several requests to the server.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "base/future.h"
#include "engines/llamacpp/loop.h"

namespace retort::engines::llamacpp {

// Derived classes do their steps on the loop's thread: each waits for one future by await(), and
// the last calls finish(). An error of a step is the caller's.
//
// Threads: everything but future() on the loop's thread.
template <class Result>
class Run : public std::enable_shared_from_this<Run<Result>> {
 public:
  explicit Run(Loop& loop) : loop_(loop) {}
  virtual ~Run() = default;

  // Once, before anything else, on any thread: takes the first step there soon.
  Future<Result> start() {
    Future<Result> future = promise_.future();
    // Weak: a run that is over is not kept by a caller who keeps its future.
    promise_.on_cancel([&loop = loop_, weak = this->weak_from_this()] {
      loop.post([weak] {
        if (const auto self = weak.lock()) self->cancel();
      });
    });
    loop_.post([self = this->shared_from_this()] { self->guarded([&] { self->begin(); }); });
    return future;
  }

 protected:
  virtual void begin() = 0;
  // Called once, when the run is over either way.
  virtual void ended() {}

  // Takes `step` with the value of `future`; its error, or what `step` throws, ends the run.
  template <class T, class Step>
  void await(Future<T> future, Step step) {
    stop_ = future.canceller();
    future.on_outcome(
        [self = this->shared_from_this(), step = std::move(step)](Outcome<T> outcome) mutable {
          self->stop_ = nullptr;
          if (self->over_) return;
          if (outcome.error) {
            self->fail(outcome.error);
            return;
          }
          self->guarded([&] { step(std::move(*outcome.value)); });
        });
    // A cancellation that came between two steps had no future to stop, so it stops this one.
    if (cancelled_ && stop_) stop_();
  }

  void finish(Result result) {
    if (!end()) return;
    promise_.set_value(std::move(result));
  }
  void fail(std::exception_ptr error) {
    if (!end()) return;
    promise_.set_error(std::move(error));
  }
  Loop& loop() const { return loop_; }

 private:
  void cancel() {
    cancelled_ = true;
    if (stop_) stop_();
  }
  template <class Fn>
  void guarded(Fn fn) {
    try {
      fn();
    } catch (...) {
      fail(std::current_exception());
    }
  }
  bool end() {
    if (over_) return false;
    over_ = true;
    ended();
    return true;
  }

  Loop& loop_;
  Promise<Result> promise_;
  std::function<void()> stop_;  // of the future that is awaited
  bool cancelled_ = false;
  bool over_ = false;
};

}  // namespace retort::engines::llamacpp
