#include "recipes/data/batches.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/data/stream_records.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
using test::global_batch, test::RowIds, test::run_epochs, test::run_ranks, test::StepRecord;

class BatchStreamTest : public testing::Test {
 protected:
  std::shared_ptr<const Dataset> set_of(const std::vector<std::vector<int64_t>>& lengths,
                                        const std::vector<double>& weights = {}) {
    return std::make_shared<Dataset>(test::numbered_dataset(folder_, lengths, weights));
  }
  test::TemporaryFolder folder_;
};

RowIds all_of(const std::vector<StepRecord>& steps) {
  RowIds all;
  for (const auto& step : steps)
    for (const RowIds& ids : step.micro_batches)
      all.insert(all.end(), ids.begin(), ids.end());
  return all;
}
RowIds sorted(RowIds ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}
RowIds first_integers(int64_t count) {
  RowIds ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(i);
  return ids;
}

TEST_F(BatchStreamTest, UnshuffledUnpackedBatchesAreTheFile) {
  const auto set = set_of({{6, 6, 6, 6, 6, 6, 6, 6, 6}});
  const BatchOptions options{
      .rows_per_micro_batch = 2, .micro_batches = 2, .packing = false, .shuffle = false};
  const auto steps = run_epochs(set, options, 2);
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[0].micro_batches, (std::vector<RowIds>{{0, 1}, {2, 3}}));
  EXPECT_EQ(steps[1].micro_batches, (std::vector<RowIds>{{4, 5}, {6, 7}}));
  EXPECT_EQ(steps[2].micro_batches, (std::vector<RowIds>{{8}, {}}))
      << "the short batch is used as it is";
  EXPECT_EQ(steps[3].micro_batches, steps[0].micro_batches);
  const auto ranks =
      run_ranks(set, {.rows_per_micro_batch = 2, .packing = false, .shuffle = false}, 2, 1);
  ASSERT_EQ(ranks[0].size(), 3u);
  EXPECT_EQ(ranks[0][0].micro_batches, (std::vector<RowIds>{{0, 2}}))
      << "pack i goes to rank i mod 2";
  EXPECT_EQ(ranks[1][0].micro_batches, (std::vector<RowIds>{{1, 3}}));
  EXPECT_EQ(ranks[0][2].micro_batches, (std::vector<RowIds>{{8}}));
  EXPECT_EQ(ranks[1][2].micro_batches, (std::vector<RowIds>{{}}))
      << "a rank without a pack takes part with an empty micro-batch";
}

TEST_F(BatchStreamTest, CursorAndEpochProgress) {
  const auto set = set_of({{6, 6, 6, 6, 6}});
  const auto steps = run_epochs(set, {.rows_per_micro_batch = 2, .packing = false}, 2);
  ASSERT_EQ(steps.size(), 6u);
  const double epochs[] = {0.4, 0.8, 1, 1.4, 1.8, 2};
  const int64_t packs[] = {2, 4, 0, 2, 4, 0};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_DOUBLE_EQ(steps[i].epoch, epochs[i]) << i;
    EXPECT_EQ(steps[i].after.epoch, i < 2 ? 0 : i < 5 ? 1 : 2) << i;
    EXPECT_EQ(steps[i].after.consumed, packs[i]) << i;
    EXPECT_EQ(steps[i].after.total, static_cast<int64_t>(i) + 1);
  }
}

TEST_F(BatchStreamTest, EveryRowOnceAnEpochForEveryLayout) {
  const auto set = set_of({test::some_lengths(1500, 60), test::some_lengths(1000, 60, 2)});
  for (const bool packing : {false, true})
    for (const bool shuffle : {false, true})
      for (const int64_t tokens : {int64_t{0}, int64_t{150}})
        for (const int64_t dp : {1, 2, 3}) {
          const BatchOptions options{.rows_per_micro_batch = 3,
                                     .tokens_per_micro_batch = tokens,
                                     .micro_batches = 2,
                                     .max_length = 64,
                                     .packing = packing,
                                     .shuffle = shuffle};
          const auto ranks = run_ranks(set, options, dp, 1);
          RowIds all;
          for (const auto& rank : ranks) {
            EXPECT_EQ(rank.size(), ranks[0].size()) << "ranks must take as many steps";
            for (const RowIds part = all_of(rank); const int64_t id : part)
              all.push_back(id);
            for (const auto& step : rank)
              EXPECT_EQ(step.micro_batches.size(), 2u);
          }
          EXPECT_EQ(sorted(all), first_integers(2500))
              << packing << shuffle << tokens << " dp " << dp;
        }
}

TEST_F(BatchStreamTest, ARampGrowsTheBatch) {
  const auto set = set_of({test::some_lengths(64, 60)});
  const BatchOptions options{.rows_per_micro_batch = 2,
                             .micro_batches = 4,
                             .rampup_steps = 6,
                             .packing = false,
                             .shuffle = false};
  BatchStream stream(set, options);
  std::vector<size_t> counts;
  Cursor middle;
  int64_t samples = 0;
  for (int step = 0; step < 8; ++step) {
    const auto drawn = stream.next();
    counts.push_back(drawn.micro_batches.size());
    samples += 2 * static_cast<int64_t>(drawn.micro_batches.size());
    EXPECT_EQ(drawn.after.consumed, samples);
    if (step == 3) middle = drawn.after;
  }
  EXPECT_EQ(counts, (std::vector<size_t>{1, 1, 2, 2, 3, 3, 4, 4}));
  BatchStream resumed(set, options, middle);
  EXPECT_EQ(resumed.next().micro_batches.size(), 3u) << "a resumed run goes on in the ramp";
  EXPECT_THROW(BatchStream(set, {.rampup_steps = -1}), Error);
}

TEST_F(BatchStreamTest, RowsKeepTheirBounds) {
  const auto set = set_of({test::some_lengths(700, 60)});
  BatchStream packed(set, {.rows_per_micro_batch = 4, .max_length = 64});
  int64_t tokens = 0, steps = 0;
  for (Cursor at; at.epoch == 0; ++steps) {
    const auto step = packed.next();
    at = step.after;
    const MicroBatch& batch = step.micro_batches.at(0);
    EXPECT_LE(batch.tokens.num_tokens(), 4 * 64);
    tokens += batch.tokens.num_tokens();
    ASSERT_EQ(batch.tokens.num_sequences(), static_cast<int64_t>(batch.samples.size()));
    for (size_t s = 0; s < batch.samples.size(); ++s)
      EXPECT_EQ(batch.tokens.cu_seqlens[s + 1] - batch.tokens.cu_seqlens[s],
                static_cast<int64_t>(batch.samples[s].input_ids.size()));
  }
  EXPECT_GT(static_cast<double>(tokens), 0.93 * static_cast<double>(steps * 4 * 64))
      << "rows are not well filled";

  BatchStream budget(
      set, {.tokens_per_micro_batch = 200, .micro_batches = 3, .max_length = 64, .packing = false});
  for (Cursor at; at.epoch == 0;) {
    const auto step = budget.next();
    at = step.after;
    for (const MicroBatch& batch : step.micro_batches)
      EXPECT_LE(batch.tokens.num_tokens(), 200);
  }
}

TEST_F(BatchStreamTest, GlobalBatchesDoNotDependOnTheLayout) {
  const auto set = set_of({test::some_lengths(1300, 60)});
  for (const bool packing : {false, true})
    for (const int64_t tokens : {int64_t{0}, int64_t{128}}) {
      BatchOptions options{.rows_per_micro_batch = 2,
                           .tokens_per_micro_batch = tokens,
                           .micro_batches = 6,
                           .max_length = 64,
                           .packing = packing};
      const auto one = run_ranks(set, options, 1, 2);
      for (const int64_t dp : {2, 3, 6}) {
        options.micro_batches = 6 / dp;
        const auto many = run_ranks(set, options, dp, 2);
        ASSERT_EQ(many[0].size(), one[0].size());
        for (size_t s = 0; s < one[0].size(); ++s) {
          EXPECT_EQ(global_batch(many, s), global_batch(one, s))
              << "step " << s << " dp " << dp << " tokens " << tokens;
          EXPECT_EQ(many[0][s].after.consumed, one[0][s].after.consumed);
        }
      }
    }
}

TEST_F(BatchStreamTest, TheOrderIsAFunctionOfSeedAndEpoch) {
  const auto set = set_of({test::some_lengths(300, 60)});
  for (const bool packing : {false, true}) {
    BatchOptions options{.rows_per_micro_batch = 4, .max_length = 64, .packing = packing};
    const auto two = run_epochs(set, options, 2);
    const auto again = run_epochs(set, options, 2);
    EXPECT_EQ(all_of(two), all_of(again));
    const auto one = all_of(run_epochs(set, options, 1));
    RowIds second = all_of(two);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), second.begin()));
    second.erase(second.begin(), second.begin() + static_cast<std::ptrdiff_t>(one.size()));
    EXPECT_NE(second, one) << "each epoch has its own order";
    options.seed = 43;
    EXPECT_NE(all_of(run_epochs(set, options, 1)), one);
  }
}

// In the order of their first samples, packs of many samples would stand at the beginning of their
// window.
TEST_F(BatchStreamTest, PacksOfAWindowAreShuffled) {
  const auto steps = run_epochs(set_of({test::some_lengths(1000, 60)}),
                                {.rows_per_micro_batch = 1, .max_length = 64}, 1);
  size_t first_half = 0;
  for (size_t s = 0; s < steps.size() / 2; ++s)
    first_half += steps[s].micro_batches[0].size();
  EXPECT_NEAR(static_cast<double>(first_half), 500, 30);
}

TEST_F(BatchStreamTest, WeightsRepeatRows) {
  const auto set = set_of({std::vector<int64_t>(50, 6), std::vector<int64_t>(30, 6)}, {1, 2.5});
  std::map<int64_t, int> times;
  for (const int64_t id : all_of(run_epochs(set, {.max_length = 32}, 2)))
    ++times[id];
  ASSERT_EQ(times.size(), 80u);
  int64_t extra = 0;
  for (const auto& [id, count] : times) {
    EXPECT_TRUE(id < 50 ? count == 2 : count >= 4 && count <= 6) << id << " seen " << count;
    if (id >= 50) extra += count - 4;
  }
  EXPECT_GT(extra, 15);
  EXPECT_LT(extra, 45);
}

TEST_F(BatchStreamTest, StepsPerEpoch) {
  const auto set = set_of({test::some_lengths(1300, 60)});
  for (const bool packing : {false, true})
    for (const int64_t tokens : {int64_t{0}, int64_t{100}}) {
      const BatchOptions options{.rows_per_micro_batch = 3,
                                 .tokens_per_micro_batch = tokens,
                                 .micro_batches = 2,
                                 .max_length = 64,
                                 .packing = packing,
                                 .dp_rank = 1,
                                 .dp_size = 2};
      BatchStream stream(set, options);
      EXPECT_EQ(stream.steps_per_epoch(), static_cast<int64_t>(run_epochs(set, options, 1).size()));
      EXPECT_EQ(test::record(stream.next()).after.total, 1) << "asking does not move the stream";
    }
}

TEST_F(BatchStreamTest, SkippedRowsAreMissingAndNothingElse) {
  std::string rows;
  RowIds good;
  for (int64_t i = 0; i < 2100; ++i) {  // a whole window of bad rows in the middle
    const bool bad = i % 7 == 0 || (i >= 1000 && i < 2060);
    rows += bad ? "bad\n" : test::numbered_row(i, 5 + i % 40);
    if (!bad) good.push_back(i);
  }
  const auto set = std::make_shared<Dataset>(
      std::vector<Source>{{.path = folder_.write("a.jsonl", rows).string()}},
      DataOptions{.on_bad_sample = OnBadSample::kSkip}, test::word_tokenizer(folder_.path()),
      test::chat_template(), folder_.path());
  for (const bool packing : {false, true})
    for (const bool shuffle : {false, true}) {
      const auto steps = run_epochs(
          set,
          {.rows_per_micro_batch = 4, .max_length = 64, .packing = packing, .shuffle = shuffle}, 1);
      EXPECT_EQ(sorted(all_of(steps)), good);
      EXPECT_EQ(steps.back().epoch, 1.0);
    }
  EXPECT_EQ(set->num_skipped(), 2100 - static_cast<int64_t>(good.size()));
}

TEST_F(BatchStreamTest, Errors) {
  const auto bad = std::make_shared<Dataset>(
      std::vector<Source>{{.path = folder_.write("a.jsonl", "bad\nworse\n").string()}},
      DataOptions{.on_bad_sample = OnBadSample::kSkip}, test::word_tokenizer(folder_.path()),
      test::chat_template(), folder_.path());
  const std::string message = test::message_of([&] { BatchStream(bad, {}).next(); });
  EXPECT_NE(message.find("all 2 rows were skipped; the first: "), std::string::npos) << message;
  EXPECT_NE(message.find("malformed JSON"), std::string::npos) << message;
  EXPECT_EQ(BatchStream(bad, {}).steps_per_epoch(), 0);

  const auto set = set_of({{60, 6}});
  EXPECT_NE(test::message_of([&] {
              BatchStream(set, {.max_length = 32}).next();
            }).find("60 tokens, more than max_length 32"),
            std::string::npos);
  const auto refuses = [&](const BatchOptions& options, const std::string& part) {
    EXPECT_NE(test::message_of([&] { BatchStream(set, options); }).find(part), std::string::npos)
        << part;
    EXPECT_NE(test::message_of([&] { eval_batches(*set, options); }).find(part), std::string::npos)
        << part;
  };
  refuses({.rows_per_micro_batch = 0}, "per_device_train_batch_size");
  refuses({.micro_batches = 0}, "gradient_accumulation_steps");
  refuses({.tokens_per_micro_batch = 100, .max_length = 128}, "tokens_per_batch");
  refuses({.dp_rank = 2, .dp_size = 2}, "dp rank 2 of 2");
  EXPECT_NE(test::message_of([&] { BatchStream(set, {}, {.epoch = -1}); }), "");
}

}  // namespace
}  // namespace retort::data
