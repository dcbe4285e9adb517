// Going on after a future whether it brought a value or an error.
#pragma once

#include <exception>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/future.h"

namespace retort::engines {

// The future of what fn(Outcome<T>) returns or throws. Runs where Future::then would; cancelling
// the result cancels `source`.
template <class T, class F>
auto settled(Future<T> source, F fn) {
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

// `source` with what `explain(const Error&)` makes of its Error.
template <class T, class F>
Future<T> explaining(Future<T> source, F explain) {
  return settled(std::move(source), [explain = std::move(explain)](Outcome<T> outcome) {
    if (!outcome.error) return std::move(*outcome.value);
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      throw explain(error);
    }
  });
}

template <class T>
Future<T> ready(T value) {
  Promise<T> promise;
  Future<T> future = promise.future();
  promise.set_value(std::move(value));
  return future;
}

// make(), whose exception becomes the error of its future.
template <class F>
auto attempted(F make) -> std::invoke_result_t<F> {
  return ready(Empty{}).then([&make](Empty) { return make(); });
}

}  // namespace retort::engines
