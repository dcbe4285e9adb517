// Asks again a question that a server did not answer, or does without.
#pragma once

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/future.h"
#include "base/future_combinators.h"
#include "engines/wire/answer_status.h"

namespace retort::engines {

// ask(), a Future, and again where the first one ended without an answer; when the server is gone
// that is no use, and its error says so. Not for what must not happen twice.
template <class F>
auto retry_once(F ask) -> std::invoke_result_t<F> {
  using Answer = std::decay_t<decltype(ask().get())>;
  using Maybe = std::optional<Answer>;
  Future<Maybe> first = then_outcome(ask(), [](Outcome<Answer> outcome) -> Maybe {
    if (!outcome.error) return std::move(*outcome.value);
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable || status_of(error) != 0) throw;
      return std::nullopt;
    }
  });
  return first.then(
      [ask](Maybe answer) { return answer ? ready_future(std::move(*answer)) : ask(); });
}

// Done, too, where the server says that it has no such door (404).
template <class T>
Future<Empty> done_or_missing(Future<T> asked) {
  return then_outcome(std::move(asked), [](Outcome<T> outcome) {
    try {
      if (outcome.error) std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      if (status_of(error) != 404) throw;
    }
    return Empty{};
  });
}

// retry_once() of ask(known), with what `known` brings.
template <class Known, class F>
auto retry_once_with(Future<Known> known, F ask) {
  return known.then([ask = std::move(ask)](Known brought) {
    return retry_once([ask, brought = std::move(brought)] { return ask(brought); });
  });
}

}  // namespace retort::engines
