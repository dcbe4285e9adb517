// Promise and Future: one completion, errors, chaining, cancellation.
#include "base/future.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/thrown.h"

namespace retort {
namespace {

using namespace std::chrono_literals;

std::exception_ptr error(ErrorCode code) {
  return std::make_exception_ptr(Error(code, "made by the test"));
}

template <class T>
ErrorCode code_of(Future<T>& future) {
  return test::code_of([&] { future.get(Deadline::after(20s)); });
}

TEST(Future, TakesTheValueOnce) {
  Promise<std::unique_ptr<int>> promise;  // move-only values work
  auto future = promise.future();
  EXPECT_FALSE(future.ready());
  EXPECT_TRUE(promise.set_value(std::make_unique<int>(7)));
  EXPECT_TRUE(future.ready());
  EXPECT_EQ(*future.get(), 7);
  EXPECT_FALSE(future.valid());
  EXPECT_DEATH(future.get(), "taken");
}

TEST(Future, CompletesExactlyOnce) {
  Promise<int> promise;
  auto future = promise.future();
  std::atomic<int> won{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, copy = promise, i]() mutable {
      won += i % 2 ? copy.set_value(i) : copy.set_error(error(ErrorCode::kTimeout));
    });
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(won, 1);
  EXPECT_FALSE(promise.set_value(1));
}

TEST(Future, WaitLeavesTheResultWhereItIs) {
  Promise<std::unique_ptr<int>> promise;
  auto future = promise.future();
  EXPECT_FALSE(future.wait(Deadline::after(1ms)));
  std::thread producer([promise]() mutable { promise.set_value(std::make_unique<int>(7)); });
  EXPECT_TRUE(future.wait(Deadline::after(20s)));
  EXPECT_TRUE(future.wait(Deadline::after(0ms))) << "what is there is there at any deadline";
  producer.join();
  EXPECT_TRUE(future.valid());
  EXPECT_EQ(*future.get(), 7);

  Promise<int> failing;
  auto failed = failing.future();
  failing.set_error(error(ErrorCode::kTimeout));
  EXPECT_TRUE(failed.wait(Deadline::after(20s))) << "an error is a result";
  EXPECT_EQ(code_of(failed), ErrorCode::kTimeout);
  EXPECT_DEATH(failed.wait(Deadline::after(1ms)), "taken");
}

TEST(Future, GetWaitsForAnotherThread) {
  Promise<std::string> promise;
  auto future = promise.future();
  std::thread producer([promise]() mutable { promise.set_value("late"); });
  EXPECT_EQ(future.get(), "late");
  producer.join();
}

TEST(Future, GetWithDeadlineLeavesTheFutureValid) {
  Promise<int> promise;
  auto future = promise.future();
  EXPECT_EQ(code_of(*std::make_unique<Future<int>>([] {
              Promise<int> p;
              auto f = p.future();
              p.set_error(error(ErrorCode::kMismatch));
              return f;
            }())),
            ErrorCode::kMismatch);
  EXPECT_THROW(
      {
        try {
          future.get(Deadline::after(1ms));
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::kTimeout);
          throw;
        }
      },
      Error);
  ASSERT_TRUE(future.valid());
  promise.set_value(3);
  EXPECT_EQ(future.get(), 3);
}

TEST(Future, AForgottenPromiseFailsWithClosed) {
  Future<int> future;
  {
    Promise<int> promise;
    future = promise.future();
    const auto copy = promise;
  }
  EXPECT_EQ(code_of(future), ErrorCode::kClosed);
}

TEST(Future, ThenChainsValuesFuturesAndVoid) {
  Promise<int> first, second;
  auto future = first.future();
  auto other = second.future();
  auto shared = std::make_shared<Future<int>>(std::move(other));
  int seen = 0;
  auto result = future.then([](int v) { return v + 1; })
                    .then([shared](int v) {
                      return shared->then([v](int w) { return std::to_string(v * w); });
                    })
                    .then([&seen](std::string text) { seen = std::stoi(text); });
  first.set_value(4);
  EXPECT_FALSE(result.ready()) << "the inner future has no value yet";
  second.set_value(10);
  ASSERT_TRUE(result.ready());
  result.get();
  EXPECT_EQ(seen, 50);
}

TEST(Future, ThenOnAReadyFutureRunsAtOnce) {
  Promise<int> promise;
  auto future = promise.future();
  promise.set_value(2);
  EXPECT_EQ(future.then([](int v) { return v * 2; }).get(), 4);
}

TEST(Future, ErrorsSkipThenAndExceptionsBecomeErrors) {
  Promise<int> promise;
  auto future = promise.future();
  bool ran = false;
  auto next = future.then([&](int v) {
    ran = true;
    return v;
  });
  promise.set_error(error(ErrorCode::kPeerLost));
  EXPECT_EQ(code_of(next), ErrorCode::kPeerLost);
  EXPECT_FALSE(ran);

  Promise<int> thrower;
  auto thrown =
      thrower.future().then([](int) -> int { throw Error(ErrorCode::kCorrupt, "in then"); });
  thrower.set_value(1);
  EXPECT_EQ(code_of(thrown), ErrorCode::kCorrupt);
}

TEST(Future, CancelReachesTheProducerThroughAChain) {
  Promise<int> promise;
  auto future = promise.future();
  int cancelled = 0;
  promise.on_cancel([&, copy = promise]() mutable {
    ++cancelled;
    copy.set_error(error(ErrorCode::kCancelled));
  });
  auto next = future.then([](int v) { return v; });
  next.cancel();
  EXPECT_EQ(cancelled, 1);
  EXPECT_EQ(code_of(next), ErrorCode::kCancelled);
}

// A chain of two calls: a request that is acknowledged, and then its result.
TEST(Future, CancelReachesTheSecondProducerOfAChain) {
  Promise<int> first;
  Promise<int> second;
  int cancelled = 0;
  second.on_cancel([&, copy = second]() mutable {
    ++cancelled;
    copy.set_error(error(ErrorCode::kCancelled));
  });
  auto chain = first.future().then([&](int) { return second.future(); });
  first.set_value(1);
  EXPECT_FALSE(chain.ready());
  chain.cancel();
  EXPECT_EQ(cancelled, 1);
  EXPECT_EQ(code_of(chain), ErrorCode::kCancelled);
}

// The first producer does not listen, and the second begins when it was asked to stop already.
TEST(Future, CancelIsRememberedForTheSecondProducerOfAChain) {
  Promise<int> first;
  Promise<int> second;
  int cancelled = 0;
  second.on_cancel([&] { ++cancelled; });
  auto chain = first.future().then([&](int) { return second.future(); });
  chain.cancel();
  first.set_value(1);
  EXPECT_EQ(cancelled, 1);
  second.set_value(2);
  EXPECT_EQ(chain.get(), 2);
}

TEST(Future, CancelAfterCompletionDoesNothing) {
  Promise<int> promise;
  auto future = promise.future();
  bool cancelled = false;
  promise.on_cancel([&] { cancelled = true; });
  promise.set_value(1);
  future.cancel();
  EXPECT_FALSE(cancelled);
  EXPECT_EQ(future.get(), 1);
}

TEST(FutureDeathTest, GetOnALoopThreadIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        future_detail::LoopThreadScope scope;
        Promise<int> promise;
        promise.future().get();
      },
      "loop thread");
}

}  // namespace
}  // namespace retort
