#include "rpc/detail/concurrency_limit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace retort::rpc::detail {
namespace {

using namespace std::chrono_literals;

size_t after(ConcurrencyLimit& pace, ConcurrencyLimit::Clock::duration took) {
  pace.enter();
  pace.leave(took);
  return pace.allowed();
}

TEST(ConcurrencyLimit, GrowsByOneForEachThatIsQuickUpToTheMost) {
  ConcurrencyLimit pace(4, 6);
  EXPECT_EQ(pace.allowed(), 4u);
  EXPECT_EQ(after(pace, 10ms), 5u);
  EXPECT_EQ(after(pace, ConcurrencyLimit::kQuick), 6u);
  EXPECT_EQ(after(pace, 0ms), 6u);
}

TEST(ConcurrencyLimit, HalvesForEachThatTakesLongDownToTheLeast) {
  ConcurrencyLimit pace(4, 32);
  while (after(pace, 0ms) < 32) {
  }
  EXPECT_EQ(after(pace, ConcurrencyLimit::kLong), 32u);
  EXPECT_EQ(after(pace, ConcurrencyLimit::kLong + 1ms), 16u);
  EXPECT_EQ(after(pace, 5s), 8u);
  EXPECT_EQ(after(pace, 5s), 4u);
  EXPECT_EQ(after(pace, 5s), 4u);
}

TEST(ConcurrencyLimit, WhoeverEntersWaitsForALeave) {
  ConcurrencyLimit pace(1, 1);
  pace.enter();
  std::atomic<bool> entered{false};
  std::thread second([&] {
    pace.enter();
    entered = true;
  });
  EXPECT_FALSE(entered);
  pace.leave(5s);
  second.join();
  EXPECT_TRUE(entered);
}

}  // namespace
}  // namespace retort::rpc::detail
