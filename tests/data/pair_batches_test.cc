#include "recipes/data/pair_batches.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/data/pair_records.h"
#include "tests/data/stream_records.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
using test::RowIds, test::values;

PreferenceSample pair_of(std::vector<int32_t> prompt, std::vector<int32_t> chosen,
                         std::vector<int32_t> rejected) {
  PreferenceSample pair;
  pair.prompt_ids = std::move(prompt);
  pair.chosen_ids = std::move(chosen);
  pair.rejected_ids = std::move(rejected);
  return pair;
}

TEST(PairMicroBatch, LaysPairsOut) {
  const PairMicroBatch batch =
      make_pair_micro_batch({pair_of({1, 2}, {3}, {4, 5}), pair_of({6}, {7, 8}, {9})});
  EXPECT_EQ(values(batch.tokens.input_ids), (RowIds{1, 2, 3, 1, 2, 4, 5, 6, 7, 8, 6, 9}));
  EXPECT_EQ(values(batch.tokens.positions), (RowIds{0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 0, 1}));
  EXPECT_EQ(batch.tokens.cu_seqlens, (RowIds{0, 3, 7, 10, 12}));
  EXPECT_EQ(values(batch.predict_positions), (RowIds{1, 4, 5, 7, 8, 10}));
  EXPECT_EQ(values(batch.targets), (RowIds{3, 4, 5, 7, 8, 9}));
  EXPECT_EQ(values(batch.sequence_of_row), (RowIds{0, 1, 1, 2, 2, 3}));
  ASSERT_EQ(batch.num_pairs(), 2);
  EXPECT_EQ(batch.shapes[0].prompt_tokens, 2);
  EXPECT_EQ(batch.shapes[0].chosen_tokens, 1);
  EXPECT_EQ(batch.shapes[0].rejected_tokens, 2);
  const PairMicroBatch empty = make_pair_micro_batch({});
  EXPECT_EQ(empty.tokens.num_tokens(), 0);
  EXPECT_EQ(empty.num_targets(), 0);
  EXPECT_EQ(empty.sequence_of_row.numel(), 0);
}

struct Step {
  std::vector<RowIds> micro_batches;
  std::vector<int64_t> tokens;
  Cursor after;
};
Step record(const PairBatchStream::Step& step) {
  Step result{{}, {}, step.after};
  for (const PairMicroBatch& batch : step.micro_batches) {
    RowIds ids;
    for (const auto& pair : batch.pairs)
      ids.push_back(test::pair_id(pair));
    result.micro_batches.push_back(ids);
    result.tokens.push_back(batch.tokens.num_tokens());
  }
  return result;
}
using Ranks = std::vector<std::vector<Step>>;
Ranks run(const std::shared_ptr<const PreferenceDataset>& set, BatchOptions options, int64_t dp,
          int64_t epochs) {
  Ranks ranks;
  options.dp_size = dp;
  for (options.dp_rank = 0; options.dp_rank < dp; ++options.dp_rank) {
    PairBatchStream stream(set, options);
    ranks.emplace_back();
    do
      ranks.back().push_back(record(stream.next()));
    while (ranks.back().back().after.epoch < epochs);
  }
  return ranks;
}
RowIds global(const Ranks& ranks, size_t s) {
  RowIds all;
  for (const auto& rank : ranks)
    for (const RowIds& ids : rank.at(s).micro_batches)
      all.insert(all.end(), ids.begin(), ids.end());
  std::sort(all.begin(), all.end());
  return all;
}
RowIds everything(const Ranks& ranks) {
  RowIds all;
  for (size_t s = 0; s < ranks[0].size(); ++s)
    for (const int64_t id : global(ranks, s))
      all.push_back(id);
  std::sort(all.begin(), all.end());
  return all;
}

class PairBatchStreamTest : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
};

TEST_F(PairBatchStreamTest, RowsOfAMicroBatchArePairs) {
  const auto set = test::pair_dataset(folder_, {4, 4, 4, 4, 4});
  const auto ranks = run(set, {.rows_per_micro_batch = 2, .shuffle = false}, 1, 1);
  ASSERT_EQ(ranks[0].size(), 3u);
  EXPECT_EQ(ranks[0][0].micro_batches, std::vector<RowIds>({{0, 1}}));
  EXPECT_EQ(ranks[0][2].micro_batches, std::vector<RowIds>({{4}}));
  EXPECT_EQ(PairBatchStream(set, {.rows_per_micro_batch = 2}).steps_per_epoch(), 3);
  const auto two = run(set, {.rows_per_micro_batch = 2, .shuffle = false}, 2, 1);
  EXPECT_EQ(two[0][0].micro_batches, std::vector<RowIds>({{0, 2}}));
  EXPECT_EQ(two[1][1].micro_batches, std::vector<RowIds>({{}}))
      << "a rank without a pair takes part with nothing";
}

TEST_F(PairBatchStreamTest, EveryGoodPairOnceForEveryLayout) {
  const auto set =
      test::pair_dataset(folder_, test::some_lengths(1500, 40), 10, {.max_length = 50});
  RowIds good;
  for (int64_t i = 0; i < 1500; ++i)
    if (i % 10 != 9) good.push_back(i);
  for (const int64_t tokens : {int64_t{0}, int64_t{400}}) {
    const BatchOptions options{
        .rows_per_micro_batch = 3, .tokens_per_micro_batch = tokens, .micro_batches = 2};
    for (const int64_t dp : {1, 2, 3}) {
      const auto ranks = run(set, options, dp, 1);
      EXPECT_EQ(everything(ranks), good) << tokens << " dp " << dp;
      for (const auto& rank : ranks) {
        EXPECT_EQ(rank.size(), ranks[0].size()) << "ranks must take as many steps";
        for (const Step& step : rank)
          for (const int64_t used : step.tokens)
            EXPECT_LE(used, tokens > 0 ? tokens : 1000);
      }
    }

    // One process with twice the accumulation sees the same global batches.
    BatchOptions more = options;
    more.micro_batches = 4;
    const auto one = run(set, more, 1, 1);
    const auto two = run(set, options, 2, 1);
    ASSERT_EQ(one[0].size(), two[0].size());
    for (size_t s = 0; s < one[0].size(); ++s)
      EXPECT_EQ(global(one, s), global(two, s)) << s;
  }
}

TEST_F(PairBatchStreamTest, BucketsHoldLikeLengthsInShuffledOrder) {
  const auto set =
      test::pair_dataset(folder_, test::some_lengths(1000, 80), 0, {.max_length = 100});
  const auto ranks = run(set, {.tokens_per_micro_batch = 1000}, 2, 2);

  // Both ranks of a step have about the same work.
  std::vector<double> means;
  for (size_t s = 0; s < ranks[0].size(); ++s) {
    if (ranks[0][s].after.epoch > 0) break;
    const double a = static_cast<double>(ranks[0][s].tokens[0]);
    const double b = static_cast<double>(ranks[1][s].tokens[0]);
    if (b > 0 && a > 700 && b > 700) {
      EXPECT_LT(std::abs(a - b), 120) << "step " << s;
    }
    const double pairs = static_cast<double>(ranks[0][s].micro_batches[0].size() +
                                             ranks[1][s].micro_batches[0].size());
    means.push_back((a + b) / pairs);
  }

  // The batches of an epoch are in no order of their lengths.
  EXPECT_FALSE(std::is_sorted(means.begin(), means.end()))
      << "batches must not stay in the order of their lengths";
  const size_t half = means.size() / 2;
  EXPECT_GT(means.size(), 20u);
  double low = 0;
  double high = 0;
  for (size_t i = 0; i < half; ++i) {
    low += means[i];
    high += means[half + i];
  }
  EXPECT_LT(std::abs(low - high) / high, 0.5)
      << "both halves of the epoch see short and long pairs";

  const RowIds first = global(ranks, 0);
  size_t second_epoch = 0;
  while (ranks[0][second_epoch].after.epoch == 0)
    ++second_epoch;
  EXPECT_NE(first, global(ranks, second_epoch + 1)) << "epochs differ";
}

TEST_F(PairBatchStreamTest, ResumesExactly) {
  const auto set = test::pair_dataset(folder_, test::some_lengths(2300, 20), 7, {.max_length = 30});
  for (const int64_t tokens : {int64_t{0}, int64_t{300}}) {
    BatchOptions options{.rows_per_micro_batch = 5,
                         .tokens_per_micro_batch = tokens,
                         .micro_batches = 2,
                         .dp_size = 2};
    for (options.dp_rank = 0; options.dp_rank < 2; ++options.dp_rank) {
      const auto whole = run(set, options, 2, 2)[static_cast<size_t>(options.dp_rank)];
      for (size_t stop = 0; stop + 1 < whole.size(); stop += whole.size() / 15) {
        PairBatchStream resumed(set, options, whole[stop].after);
        for (size_t s = stop + 1; s < std::min(whole.size(), stop + 4); ++s) {
          const Step step = record(resumed.next());
          ASSERT_EQ(step.micro_batches, whole[s].micro_batches)
              << "stopped after " << stop << ", differs at " << s;
          ASSERT_EQ(step.after.consumed, whole[s].after.consumed);
        }
      }
    }
  }
}

TEST_F(PairBatchStreamTest, RefusesWhatCannotWork) {
  const auto set = test::pair_dataset(folder_, {4, 4}, 0, {.max_length = 50});
  const auto message = [&](const BatchOptions& options) {
    return test::message_of([&] { PairBatchStream stream(set, options); });
  };
  EXPECT_NE(message({.tokens_per_micro_batch = 99}).find("twice data.max_length (2 * 50)"),
            std::string::npos);
  EXPECT_NO_THROW(PairBatchStream(set, {.tokens_per_micro_batch = 100}));
  EXPECT_NE(message({.rows_per_micro_batch = 0}).find("per_device_train_batch_size"),
            std::string::npos);
  EXPECT_NE(message({.dp_rank = 2, .dp_size = 2}).find("dp rank 2 of 2"), std::string::npos);
  EXPECT_NE(message({.packing = false}).find("packing: false has no effect"), std::string::npos);
  EXPECT_NE(message({.max_length = 64}).find("max_length of the batches is 64, of the pairs 50"),
            std::string::npos);
  EXPECT_NO_THROW(PairBatchStream(set, {.max_length = 50}))
      << "what a recipe's options say is the dataset's";

  const auto bad = test::pair_dataset(folder_, {4, 4}, 1);
  PairBatchStream stream(bad, {});
  EXPECT_NE(test::message_of([&] { stream.next(); }).find("all 2 rows were skipped"),
            std::string::npos);
}

TEST_F(PairBatchStreamTest, EvaluationSeesEveryPairOnce) {
  const auto set = test::pair_dataset(folder_, {4, 4, 4, 4, 4, 4, 4}, 4, {.max_length = 30});
  for (const int64_t tokens : {int64_t{0}, int64_t{60}}) {
    RowIds all;
    size_t batches = 0;
    for (const int64_t rank : {0, 1}) {
      const auto mine = eval_pair_batches(*set, {.rows_per_micro_batch = 2,
                                                 .tokens_per_micro_batch = tokens,
                                                 .dp_rank = rank,
                                                 .dp_size = 2});
      EXPECT_TRUE(rank == 0 || mine.size() == batches);
      batches = mine.size();
      for (const auto& batch : mine)
        for (const auto& pair : batch.pairs)
          all.push_back(test::pair_id(pair));
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, (RowIds{0, 1, 2, 4, 5, 6})) << tokens;
  }
}

}  // namespace
}  // namespace retort::data
