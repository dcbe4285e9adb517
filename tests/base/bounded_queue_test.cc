#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/sizes.h"
#include "tests/support/thrown.h"

namespace retort {
namespace {
using namespace std::chrono_literals;
using test::code_of;

Deadline soon() { return Deadline::after(20ms); }
Deadline late() { return Deadline::after(30s); }

TEST(BoundedQueue, KeepsOrder) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i)
    queue.push(i, soon());
  EXPECT_EQ(queue.size(), 3u);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(queue.pop(soon()), i);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(BoundedQueue, HoldsMoveOnlyItems) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  queue.push(std::make_unique<int>(7), soon());
  EXPECT_EQ(**queue.pop(soon()), 7);
}

TEST(BoundedQueue, PushTimesOutWhileFullAndKeepsWhatIsThere) {
  BoundedQueue<int> queue(1);
  queue.push(1, soon());
  const auto start = Deadline::Clock::now();
  EXPECT_EQ(code_of([&] { queue.push(2, soon()); }), ErrorCode::kTimeout);
  EXPECT_GE(Deadline::Clock::now() - start, 19ms);
  EXPECT_FALSE(queue.try_push(3));
  EXPECT_EQ(queue.pop(soon()), 1);
  EXPECT_TRUE(queue.try_push(4));
  EXPECT_EQ(queue.pop(soon()), 4);
}

TEST(BoundedQueue, PopTimesOutWhileEmpty) {
  BoundedQueue<int> queue(1);
  const auto start = Deadline::Clock::now();
  EXPECT_EQ(queue.pop(soon()), std::nullopt);
  EXPECT_GE(Deadline::Clock::now() - start, 19ms);
  EXPECT_FALSE(queue.closed());
}

TEST(BoundedQueue, AWaitingPushGoesOnWhenThereIsRoom) {
  BoundedQueue<int> queue(1);
  queue.push(1, soon());
  std::thread producer([&] { queue.push(2, late()); });
  EXPECT_EQ(queue.pop(late()), 1);
  EXPECT_EQ(queue.pop(late()), 2);
  producer.join();
}

TEST(BoundedQueue, CloseWakesEveryWaiter) {
  BoundedQueue<int> empty(1), full(1);
  full.push(1, soon());
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      EXPECT_EQ(empty.pop(late()), std::nullopt);
      ++woken;
    });
    threads.emplace_back([&] {
      EXPECT_EQ(code_of([&] { full.push(2, late()); }), ErrorCode::kClosed);
      ++woken;
    });
  }
  const auto start = Deadline::Clock::now();
  empty.close();
  full.close();
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(woken, 4);
  EXPECT_LT(Deadline::Clock::now() - start, 25s) << "they waited for their deadlines";
}

TEST(BoundedQueue, ClosedRefusesNewItemsAndDrains) {
  BoundedQueue<int> queue(3);
  queue.push(1, soon());
  queue.push(2, soon());
  queue.close();
  queue.close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.try_push(3));
  EXPECT_EQ(code_of([&] { queue.push(3, soon()); }), ErrorCode::kClosed);
  EXPECT_EQ(queue.pop(soon()), 1);
  EXPECT_EQ(queue.pop(soon()), 2);
  EXPECT_EQ(queue.pop(late()), std::nullopt) << "closed and drained: at once";
}

TEST(BoundedQueue, ManyThreadsLoseAndRepeatNothing) {
  constexpr int kProducers = 4;
  constexpr int kConsumers = 3;
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(5);
  std::vector<std::atomic<int>> seen(kProducers * kEach);
  std::atomic<size_t> largest{0};

  // Producers push numbers that are all different; consumers count each that they get.
  std::vector<std::thread> producers, consumers;
  for (int p = 0; p < kProducers; ++p)
    producers.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i)
        queue.push(p * kEach + i, late());
    });
  for (int c = 0; c < kConsumers; ++c)
    consumers.emplace_back([&] {
      while (auto item = queue.pop(late())) {
        ++seen[to_size(*item)];
        if (const size_t size = queue.size(); size > largest) largest = size;
      }
    });

  // Closing after the last push lets the consumers drain the queue and end.
  for (auto& thread : producers)
    thread.join();
  queue.close();
  for (auto& thread : consumers)
    thread.join();

  for (size_t i = 0; i < seen.size(); ++i)
    ASSERT_EQ(seen[i], 1) << i;
  EXPECT_LE(largest, 5u) << "more than the capacity was queued";
}

TEST(BoundedQueueDeathTest, CapacityIsPositive) {
  EXPECT_DEATH(BoundedQueue<int>(0), "capacity > 0");
}

}  // namespace
}  // namespace retort
