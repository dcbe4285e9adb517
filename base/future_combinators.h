// Futures made of futures, where Future::then() is not enough: of errors too, and of what is there.
#pragma once

#include <exception>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/future.h"

namespace retort {

// The future of what fn(Outcome<T>) returns or throws, whether `source` brought a value or an
// error. Runs where Future::then would; cancelling the result cancels `source`.
template <class T, class F>
auto then_outcome(Future<T> source, F fn) {
  using Result = std::invoke_result_t<F, Outcome<T>>;
  Promise<Result> promise;
  Future<Result> next = promise.future();
  promise.on_cancel(source.canceller());
  source.on_outcome([promise, fn = std::move(fn)](Outcome<T> outcome) mutable {
    try {
      promise.set_value(fn(std::move(outcome)));
    } catch (...) {
      promise.set_error(std::current_exception());
    }
  });
  return next;
}

// `source` with what map(const Error&) makes of its Error.
template <class T, class F>
Future<T> map_error(Future<T> source, F map) {
  return then_outcome(std::move(source), [map = std::move(map)](Outcome<T> outcome) {
    if (!outcome.error) return std::move(*outcome.value);
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      throw map(error);
    }
  });
}

// A value that is there.
template <class T>
Future<T> ready_future(T value) {
  Promise<T> promise;
  Future<T> future = promise.future();
  promise.set_value(std::move(value));
  return future;
}

// make(), whose exception becomes the error of its future.
template <class F>
auto try_future(F make) -> std::invoke_result_t<F> {
  return ready_future(Empty{}).then([&make](Empty) { return make(); });
}

}  // namespace retort
