// A stream made from a stored cursor continues exactly as the one that was not interrupted.
#include <gtest/gtest.h>

#include "tests/data/stream_records.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
using test::StepRecord;

struct Layout {
  int64_t dp_size;
  bool packing;
  int64_t tokens;
  bool shuffle;
};

class ResumeTest : public testing::TestWithParam<Layout> {};

bool same(const StepRecord& a, const StepRecord& b) {
  return a.micro_batches == b.micro_batches && a.epoch == b.epoch &&
         a.after.epoch == b.after.epoch && a.after.consumed == b.after.consumed &&
         a.after.total == b.after.total && a.after.window == b.after.window &&
         a.after.consumed_before_window == b.after.consumed_before_window;
}

TEST_P(ResumeTest, EqualsTheUninterruptedStream) {
  const Layout layout = GetParam();
  const test::TemporaryFolder folder;
  const auto set = std::make_shared<Dataset>(test::numbered_dataset(
      folder, {test::some_lengths(1200, 60), test::some_lengths(700, 60, 2)}, {1, 1.5}));
  BatchOptions options{.rows_per_micro_batch = 8,
                       .tokens_per_micro_batch = layout.tokens,
                       .micro_batches = 2,
                       .max_length = 64,
                       .packing = layout.packing,
                       .shuffle = layout.shuffle,
                       .dp_size = layout.dp_size};

  // From 24 places of two epochs.
  for (options.dp_rank = 0; options.dp_rank < options.dp_size; ++options.dp_rank) {
    const auto whole = test::run_epochs(set, options, 2);
    ASSERT_GE(whole.size(), 24u);
    for (size_t stop = 0; stop + 1 < whole.size(); stop += whole.size() / 24) {
      BatchStream resumed(set, options, whole[stop].after);
      const size_t compare = std::min(whole.size(), stop + 4);
      for (size_t s = stop + 1; s < compare; ++s)
        ASSERT_TRUE(same(test::record(resumed.next()), whole[s]))
            << "stopped after step " << stop << ", differs at " << s;
    }

    // The three numbers that define a place are enough; where the search begins is only a short
    // cut. From the last window of epoch 0, and from an early one of epoch 1.
    for (const size_t stop : {whole.size() * 9 / 20, whole.size() * 2 / 3}) {
      const Cursor place = whole[stop].after;
      BatchStream slow(set, options, {place.epoch, place.consumed, place.total});
      ASSERT_TRUE(same(test::record(slow.next()), whole[stop + 1]))
          << "stopped after step " << stop;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ResumeTest,
                         testing::Values(Layout{1, true, 0, true}, Layout{1, false, 0, true},
                                         Layout{2, true, 0, true}, Layout{2, false, 0, true},
                                         Layout{3, true, 0, true}, Layout{3, false, 0, true},
                                         Layout{1, true, 300, true}, Layout{2, false, 300, true},
                                         Layout{1, true, 0, false}));

TEST(Resume, RunningAheadDoesNotMoveTheStoredPlace) {
  const test::TemporaryFolder folder;
  const auto set =
      std::make_shared<Dataset>(test::numbered_dataset(folder, {test::some_lengths(300, 60)}));
  const BatchOptions options{.rows_per_micro_batch = 4, .max_length = 64};
  BatchStream stream(set, options);
  const Cursor stored = stream.next().after;
  const auto second = test::record(stream.next());
  for (int i = 0; i < 5; ++i)
    stream.next();
  BatchStream resumed(set, options, stored);
  EXPECT_TRUE(same(test::record(resumed.next()), second));
}

TEST(Resume, APlaceBeyondTheDataIsAMismatch) {
  const test::TemporaryFolder folder;
  const auto set = std::make_shared<Dataset>(test::numbered_dataset(folder, {{6, 6, 6}}));
  BatchStream stream(set, {.packing = false}, {.epoch = 1, .consumed = 4, .total = 9});
  EXPECT_EQ(test::code_of([&] { stream.next(); }), ErrorCode::kMismatch);
  BatchStream at_end(set, {.rows_per_micro_batch = 3, .packing = false},
                     {.epoch = 1, .consumed = 3, .total = 9});
  EXPECT_EQ(at_end.next().after.epoch, 3) << "the end of an epoch is the beginning of the next";
}

}  // namespace
}  // namespace retort::data
