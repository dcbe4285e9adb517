// The result of something that finishes later: Promise<T> completes it once, Future<T> waits for it
// or chains on it.
//
//   Future<Reply> reply = agent.call(...);
//   // or a function that returns a Future
//   Future<double> loss = reply.then([](Reply r) { return r.loss; });
//   double value = loss.get();                                              // rethrows the error
//
// Threads: any thread may hold either end; one Future object is used by one thread at a time.
// Functions given to then() and on_outcome() run on the thread that completes the promise (for
// calls: the agent's loop thread, so they must not block), or at once on the calling thread if the
// result is already there.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"

namespace retort {

template <class T>
class Future;
template <class T>
class Promise;

// A result without a value.
struct Empty {
  template <class Archive>
  void serialize(Archive&) {}
};

// Exactly one of the two is set.
template <class T>
struct Outcome {
  std::optional<T> value;
  std::exception_ptr error;
};

namespace future_detail {

// True on a thread that runs an agent's loop: waiting there would wait for itself.
bool on_loop_thread();

// Marks the current thread as a loop thread for as long as it lives.
class LoopThreadScope {
 public:
  LoopThreadScope();
  ~LoopThreadScope();
  LoopThreadScope(const LoopThreadScope&) = delete;
  LoopThreadScope& operator=(const LoopThreadScope&) = delete;
};

// What a promise and its future share. No function is ever called with the mutex held.
template <class T>
class FutureState {
 public:
  // False if it was complete already; then nothing changes.
  bool complete(Outcome<T> outcome) {
    std::function<void(Outcome<T>)> continuation;
    std::function<void()> canceller;
    {
      std::lock_guard lock(mutex_);
      if (complete_) return false;
      complete_ = true;
      // It is destroyed without the lock, because what it holds may call back.
      canceller = std::move(canceller_);
      canceller_ = nullptr;
      if (continuation_) {
        continuation = std::move(continuation_);
        continuation_ = nullptr;
      } else {
        outcome_ = std::move(outcome);
      }
    }
    changed_.notify_all();
    if (continuation) continuation(std::move(outcome));
    return true;
  }

  bool ready() const {
    std::lock_guard lock(mutex_);
    return complete_;
  }

  // The outcome, moved out; nullopt if it is not there by `deadline` (no deadline: the promise's
  // own guarantee).
  std::optional<Outcome<T>> wait(const std::optional<Deadline>& deadline) {
    std::unique_lock lock(mutex_);
    if (!wait_complete(lock, deadline)) return std::nullopt;
    return std::move(outcome_);
  }

  // Leaves the outcome where it is.
  bool wait_ready(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return wait_complete(lock, deadline);
  }

  void on_outcome(std::function<void(Outcome<T>)> continuation) {
    {
      std::lock_guard lock(mutex_);
      if (!complete_) {
        continuation_ = std::move(continuation);
        return;
      }
    }
    continuation(std::move(outcome_));
  }

  // Who was asked to stop before there was anybody to tell is told now.
  void set_canceller(std::function<void()> canceller) {
    {
      std::lock_guard lock(mutex_);
      if (complete_) return;
      if (!cancel_asked_) {
        canceller_ = std::move(canceller);
        return;
      }
    }
    canceller();
  }
  void cancel() {
    std::function<void()> canceller;
    {
      std::lock_guard lock(mutex_);
      if (complete_) return;
      cancel_asked_ = true;
      canceller = std::move(canceller_);
      canceller_ = nullptr;
    }
    if (canceller) canceller();
  }

 private:
  bool wait_complete(std::unique_lock<std::mutex>& lock, const std::optional<Deadline>& deadline) {
    if (complete_) return true;
    RETORT_CHECK(!on_loop_thread()) << "waiting for a Future on a loop thread waits for itself; "
                                       "use then()";
    const auto done = [&] { return complete_; };
    if (deadline) return changed_.wait_until(lock, deadline->time(), done);
    changed_.wait(lock, done);
    return true;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool complete_ = false;
  bool cancel_asked_ = false;
  Outcome<T> outcome_;
  std::function<void(Outcome<T>)> continuation_;
  std::function<void()> canceller_;
};

template <class T>
struct Unwrapped {
  using Type = T;
};
template <>
struct Unwrapped<void> {
  using Type = Empty;
};
template <class T>
struct Unwrapped<Future<T>> {
  using Type = T;
};
template <class T>
inline constexpr bool kIsFuture = false;
template <class T>
inline constexpr bool kIsFuture<Future<T>> = true;

}  // namespace future_detail

template <class T>
class Future {
 public:
  Future() = default;
  Future(Future&&) noexcept = default;
  Future& operator=(Future&&) noexcept = default;

  // False for a default-constructed future and once get() or then() took the result.
  bool valid() const { return state_ != nullptr; }
  bool ready() const { return state().ready(); }

  // Waits until the result is there, value or error, and leaves it there; false if it is not by
  // `deadline`. A bug on a loop thread.
  bool wait(Deadline deadline) const { return state().wait_ready(deadline); }

  // Waits and takes the value; rethrows the error. Completion is guaranteed by the call's own
  // deadline (and by Promise, which never goes away without completing). A bug on a loop thread,
  // and a bug to ask twice.
  T get() {
    auto outcome = state().wait(std::nullopt);
    state_.reset();
    return take(std::move(*outcome));
  }

  // The same, but throws kTimeout at `deadline` and stays valid: the call goes on.
  T get(Deadline deadline) {
    auto outcome = state().wait(deadline);
    if (!outcome)
      throw Error(ErrorCode::kTimeout, "the result was not there by the deadline of get()");
    state_.reset();
    return take(std::move(*outcome));
  }

  // Takes the result: runs fn(T) when the value is there and returns the future of what fn returns
  // (void: Empty; a Future: its result). An error skips fn; an exception of fn becomes the error.
  template <class Fn>
  auto then(Fn fn) {
    using Result = std::invoke_result_t<Fn, T>;
    using U = typename future_detail::Unwrapped<Result>::Type;
    Promise<U> promise;
    auto next = promise.future();
    promise.on_cancel([source = state_] { source->cancel(); });
    on_outcome([promise, fn = std::move(fn)](Outcome<T> outcome) mutable {
      if (outcome.error) {
        promise.set_error(outcome.error);
        return;
      }
      try {
        if constexpr (future_detail::kIsFuture<Result>) {
          // From here on it is the second producer that has to be asked to stop.
          Future<U> second = fn(std::move(*outcome.value));
          const auto state = second.state_;
          second.on_outcome(
              [promise](Outcome<U> inner) mutable { promise.complete(std::move(inner)); });
          promise.on_cancel([state] { state->cancel(); });
        } else if constexpr (std::is_void_v<Result>) {
          fn(std::move(*outcome.value));
          promise.set_value(Empty{});
        } else {
          promise.set_value(fn(std::move(*outcome.value)));
        }
      } catch (...) {
        promise.set_error(std::current_exception());
      }
    });
    return next;
  }

  // Takes the result: runs fn(Outcome<T>) once, with the value or the error. fn must not throw.
  void on_outcome(std::function<void(Outcome<T>)> fn) {
    auto state = std::move(state_);
    RETORT_CHECK(state) << "on_outcome() on a future whose result was taken";
    state->on_outcome(std::move(fn));
  }

  // Asks the producer to stop, with then() whichever of the two producers works; the future then
  // completes with kCancelled unless the result was faster.
  void cancel() { state().cancel(); }
  // What cancel() does, for as long as the producer works, also after then() or on_outcome().
  std::function<void()> canceller() const {
    RETORT_CHECK(state_) << "a future whose result was taken";
    return [state = state_] { state->cancel(); };
  }

 private:
  friend class Promise<T>;
  template <class U>
  friend class Future;
  explicit Future(std::shared_ptr<future_detail::FutureState<T>> state)
      : state_(std::move(state)) {}
  future_detail::FutureState<T>& state() const {
    RETORT_CHECK(state_) << "a future whose result was taken";
    return *state_;
  }
  static T take(Outcome<T> outcome) {
    if (outcome.error) std::rethrow_exception(outcome.error);
    return std::move(*outcome.value);
  }
  std::shared_ptr<future_detail::FutureState<T>> state_;
};

// The producing end; copies share one result. The first completion counts, later ones change
// nothing. When the last copy goes away without one, the future fails with kClosed, so no get()
// waits for ever.
template <class T>
class Promise {
 public:
  Promise() : end_(std::make_shared<End>()) {}

  // Once.
  Future<T> future() {
    RETORT_CHECK(!end_->taken) << "a promise has one future";
    end_->taken = true;
    return Future<T>(end_->state);
  }

  // Each returns false if the result was there already.
  bool set_value(T value) {
    Outcome<T> outcome;
    outcome.value.emplace(std::move(value));
    return complete(std::move(outcome));
  }
  bool set_error(std::exception_ptr error) {
    Outcome<T> outcome;
    outcome.error = std::move(error);
    return complete(std::move(outcome));
  }
  bool complete(Outcome<T> outcome) { return end_->state->complete(std::move(outcome)); }

  // What Future::cancel() calls, at most once, on its own thread; at once if it was called before.
  void on_cancel(std::function<void()> canceller) {
    end_->state->set_canceller(std::move(canceller));
  }

 private:
  struct End {
    std::shared_ptr<future_detail::FutureState<T>> state =
        std::make_shared<future_detail::FutureState<T>>();
    bool taken = false;
    ~End() {
      if (state->ready()) return;
      Outcome<T> outcome;
      outcome.error = std::make_exception_ptr(
          Error(ErrorCode::kClosed, "whoever had to produce the result went away without one"));
      state->complete(std::move(outcome));
    }
  };
  std::shared_ptr<End> end_;
};

}  // namespace retort
