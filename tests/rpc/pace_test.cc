#include "rpc/detail/pace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace retort::rpc::detail {
namespace {

using namespace std::chrono_literals;

size_t after(Pace& pace, Pace::Clock::duration took) {
  pace.enter();
  pace.leave(took);
  return pace.allowed();
}

TEST(Pace, GrowsByOneForEachThatIsQuickUpToTheMost) {
  Pace pace(4, 6);
  EXPECT_EQ(pace.allowed(), 4u);
  EXPECT_EQ(after(pace, 10ms), 5u);
  EXPECT_EQ(after(pace, Pace::kQuick), 6u);
  EXPECT_EQ(after(pace, 0ms), 6u);
}

TEST(Pace, HalvesForEachThatTakesLongDownToTheLeast) {
  Pace pace(4, 32);
  while (after(pace, 0ms) < 32) {
  }
  EXPECT_EQ(after(pace, Pace::kLong), 32u);
  EXPECT_EQ(after(pace, Pace::kLong + 1ms), 16u);
  EXPECT_EQ(after(pace, 5s), 8u);
  EXPECT_EQ(after(pace, 5s), 4u);
  EXPECT_EQ(after(pace, 5s), 4u);
}

TEST(Pace, WhoeverEntersWaitsForALeave) {
  Pace pace(1, 1);
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
