#include "recipes/data/detail/prefetcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "recipes/data/batches.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::data {
namespace {

using namespace std::chrono_literals;

TEST(Prefetcher, MakesTheNextValueMeanwhile) {
  std::atomic<int> made = 0;
  detail::Prefetcher<int> values([&] { return ++made; });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(made, 0) << "nothing before it is asked for";
  EXPECT_EQ(values.next(), 1);
  EXPECT_TRUE(test::wait_until([&] { return made == 2; }, 30s));
  values.settle();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(made, 2) << "one ahead, not more";
  EXPECT_EQ(values.next(), 2);
}

TEST(Prefetcher, SaysHowLongItWasWaitedFor) {
  detail::Prefetcher<int> values([] {
    std::this_thread::sleep_for(200ms);
    return 1;
  });
  values.next();
  EXPECT_GE(values.waited(), 0.15) << "the first is made while it is waited for";
  // Once at least: this thread may be held up between two readings of the clock.
  bool was_there = false;
  for (int round = 0; round < 5 && !was_there; ++round) {
    values.settle();
    values.next();
    was_there = values.waited() < 0.15;
  }
  EXPECT_TRUE(was_there);
}

TEST(Prefetcher, AFailureComesWithItsOwnValue) {
  int made = 0;
  detail::Prefetcher<int> values([&] {
    if (++made == 2) throw Error(ErrorCode::kInvalidArgument, "row 2");
    return made;
  });
  EXPECT_EQ(values.next(), 1);
  test::expect_refused("row 2", [&] { values.next(); });
}

// The steps of a stream do not depend on when they are taken.
TEST(Prefetcher, AStreamGivesTheSameSteps) {
  const test::TemporaryFolder folder;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 3000; ++i)
    lengths.push_back(5 + i * 7 % 20);
  const auto set = std::make_shared<Dataset>(test::numbered_dataset(folder, {lengths}));
  const BatchOptions options{.rows_per_micro_batch = 4, .max_length = 64};
  BatchStream slow(set, options), fast(set, options);
  for (int step = 0; step < 80; ++step) {
    if (step % 20 == 0) std::this_thread::sleep_for(20ms);
    const BatchStream::Step a = slow.next(), b = fast.next();
    ASSERT_TRUE(a.waited.has_value());
    ASSERT_EQ(a.after.consumed, b.after.consumed);
    ASSERT_EQ(a.micro_batches.front().samples.size(), b.micro_batches.front().samples.size());
    for (size_t i = 0; i < a.micro_batches.front().samples.size(); ++i)
      ASSERT_EQ(a.micro_batches.front().samples[i].origin,
                b.micro_batches.front().samples[i].origin);
  }
}

}  // namespace
}  // namespace retort::data
