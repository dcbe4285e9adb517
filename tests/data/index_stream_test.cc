#include "recipes/data/index_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "recipes/data/prompt_dataset.h"
#include "tests/data/pair_records.h"
#include "tests/data/stream_records.h"
#include "tests/support/thrown.h"

namespace retort::data::index_stream {
namespace {
using Rows = std::vector<int64_t>;

class IndexStreamTest : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
};

std::vector<IndexStream::Step> run(const std::shared_ptr<const RowSet>& set,
                                   const IndexOptions& options, int64_t count, int64_t epochs) {
  IndexStream stream(set, options);
  std::vector<IndexStream::Step> steps;
  do
    steps.push_back(stream.next(count));
  while (steps.back().after.epoch < epochs);
  return steps;
}
Rows all_of(const std::vector<IndexStream::Step>& steps) {
  Rows all;
  for (const auto& step : steps)
    all.insert(all.end(), step.rows.begin(), step.rows.end());
  return all;
}

TEST_F(IndexStreamTest, FileOrderAndShortLastStep) {
  const auto set = test::pair_dataset(folder_, Rows(7, 3));
  const auto steps = run(set, {.shuffle = false}, 3, 2);
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[0].rows, (Rows{0, 1, 2}));
  EXPECT_EQ(steps[2].rows, (Rows{6})) << "a step does not reach into the next epoch";
  EXPECT_EQ(steps[3].rows, (Rows{0, 1, 2}));
  EXPECT_DOUBLE_EQ(steps[0].epoch, 3.0 / 7);
  EXPECT_DOUBLE_EQ(steps[2].epoch, 1);
  EXPECT_EQ(steps[2].after.epoch, 1);
  EXPECT_EQ(steps[2].after.consumed, 0);
  EXPECT_EQ(steps[4].after.total, 13);
}

TEST_F(IndexStreamTest, TheOrderIsTheBatchStreams) {
  const auto set = std::make_shared<Dataset>(
      test::numbered_dataset(folder_, {Rows(90, 6), Rows(60, 6)}, {1, 1.5}));
  const auto steps = run(set, {.seed = 9}, 4, 3);
  Rows expected;
  for (const auto& step :
       test::run_epochs(set, {.seed = 9, .rows_per_micro_batch = 4, .packing = false}, 3))
    expected.insert(expected.end(), step.micro_batches[0].begin(), step.micro_batches[0].end());
  EXPECT_EQ(all_of(steps), expected);
  EXPECT_NE(all_of(steps), all_of(run(set, {.seed = 8}, 4, 3)));
  std::map<int64_t, int> times;
  for (const int64_t row : all_of(run(set, {.seed = 9}, 7, 1)))
    ++times[row];
  for (int64_t row = 0; row < 150; ++row)
    EXPECT_GE(times[row], 1);
  for (int64_t row = 0; row < 90; ++row)
    EXPECT_EQ(times[row], 1);
}

TEST_F(IndexStreamTest, SkipsBadRowsAndResumes) {
  const auto set = test::pair_dataset(folder_, Rows(200, 3), 3);
  const auto whole = run(set, {}, 9, 3);
  Rows first = all_of({whole.begin(), whole.begin() + 15});
  std::sort(first.begin(), first.end());
  Rows good;
  for (int64_t row = 0; row < 200; ++row)
    if (row % 3 != 2) good.push_back(row);
  EXPECT_EQ(first, good);
  EXPECT_EQ(whole[14].after.epoch, 1);
  EXPECT_EQ(IndexStream(set, {}).rows_per_epoch(), 134);
  for (size_t stop = 0; stop + 1 < whole.size(); stop += 3) {
    IndexStream resumed(set, {}, whole[stop].after);
    const auto step = resumed.next(9);
    EXPECT_EQ(step.rows, whole[stop + 1].rows) << stop;
    EXPECT_EQ(step.after.consumed, whole[stop + 1].after.consumed) << stop;
    EXPECT_EQ(step.after.total, whole[stop + 1].after.total) << stop;
  }
}

TEST_F(IndexStreamTest, RefusesWhatCannotWork) {
  const auto bad = test::pair_dataset(folder_, Rows(3, 3), 1);
  IndexStream none(bad, {});
  EXPECT_NE(test::message_of([&] { none.next(1); }).find("all 3 rows were skipped"),
            std::string::npos);
  const auto set = test::pair_dataset(folder_, Rows(3, 3));
  EXPECT_NE(test::message_of([&] { IndexStream(set, {}, {.consumed = -1}); }).find("negative"),
            std::string::npos);
  IndexStream beyond(set, {}, {.epoch = 1, .consumed = 4});
  EXPECT_EQ(test::code_of([&] { beyond.next(1); }), ErrorCode::kMismatch);
  IndexStream end(set, {}, {.epoch = 1, .consumed = 3});
  EXPECT_EQ(end.next(5).after.epoch, 3) << "the end of an epoch is the beginning of the next";
}

}  // namespace
}  // namespace retort::data::index_stream
