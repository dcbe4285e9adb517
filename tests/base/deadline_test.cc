#include "base/deadline.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/thread_checker.h"

namespace retort {
namespace {
using namespace std::chrono_literals;

TEST(Deadline, InTheFuture) {
  const auto deadline = Deadline::after(10min);
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), 9min);
  EXPECT_LE(deadline.remaining(), 10min);
}

TEST(Deadline, InThePast) {
  const Deadline deadline(Deadline::Clock::now() - 5s);
  EXPECT_TRUE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), 0ms) << "never negative";
}

TEST(Deadline, NowIsExpired) { EXPECT_TRUE(Deadline::after(0ms).expired()); }

TEST(ThreadChecker, BindsToTheFirstThread) {
  ThreadChecker checker;
  EXPECT_TRUE(checker.on_valid_thread());
  EXPECT_TRUE(checker.on_valid_thread());
  bool other = true;
  std::thread([&] { other = checker.on_valid_thread(); }).join();
  EXPECT_FALSE(other);
}

TEST(ThreadCheckerDeathTest, DebugBuildsEndOnAnotherThread) {
  ThreadChecker checker;
  checker.check("step()");
  EXPECT_DEBUG_DEATH(std::thread([&] { checker.check("step()"); }).join(),
                     "step\\(\\) on another thread");
}

TEST(ThreadChecker, RebindMovesIt) {
  ThreadChecker checker;
  EXPECT_TRUE(checker.on_valid_thread());
  bool other = false;
  std::thread([&] {
    checker.rebind();
    other = checker.on_valid_thread();
  }).join();
  EXPECT_TRUE(other);
  EXPECT_FALSE(checker.on_valid_thread());
}

}  // namespace
}  // namespace retort
