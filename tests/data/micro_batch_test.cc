#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>

#include "recipes/data/batches.h"
#include "tests/data/stream_records.h"

namespace retort::data {
namespace {
using test::values;
using Values = std::vector<int64_t>;

TEST(MicroBatch, LaysSamplesEndToEnd) {
  Sample a{.input_ids = {11, 12, 13}, .is_target = {0, 1, 1}, .origin = "a:1"};
  // The first token of a sequence is no target even if it is marked: what stands before it belongs
  // to another sample.
  Sample b{.input_ids = {21, 22}, .is_target = {1, 0}, .origin = "b:1"};
  Sample c{.input_ids = {31, 32, 33, 34}, .is_target = {0, 0, 1, 0}, .origin = "c:1"};
  const MicroBatch batch = make_micro_batch({a, b, c});
  EXPECT_EQ(values(batch.tokens.input_ids), (Values{11, 12, 13, 21, 22, 31, 32, 33, 34}));
  EXPECT_EQ(values(batch.tokens.positions), (Values{0, 1, 2, 0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(batch.tokens.cu_seqlens, (Values{0, 3, 5, 9}));
  EXPECT_EQ(values(batch.predict_positions), (Values{0, 1, 6}));
  EXPECT_EQ(values(batch.targets), (Values{12, 13, 33}));
  EXPECT_EQ(batch.num_targets(), 3);
  ASSERT_EQ(batch.samples.size(), 3u);
  EXPECT_EQ(batch.samples[1].origin, "b:1");
}

TEST(MicroBatch, Empty) {
  const MicroBatch batch = make_micro_batch({});
  EXPECT_EQ(batch.tokens.num_tokens(), 0);
  EXPECT_EQ(batch.tokens.num_sequences(), 0);
  EXPECT_EQ(values(batch.tokens.input_ids), Values{});
  EXPECT_EQ(values(batch.tokens.positions), Values{});
  EXPECT_EQ(values(batch.predict_positions), Values{});
  EXPECT_EQ(values(batch.targets), Values{});
  EXPECT_EQ(batch.num_targets(), 0);
}

class EvalBatchesTest : public testing::Test {
 protected:
  // Ids of the samples of every rank, in order, micro-batch by micro-batch.
  std::vector<std::vector<Values>> ranks(const Dataset& set, BatchOptions options,
                                         int64_t dp_size) {
    std::vector<std::vector<Values>> all;
    options.dp_size = dp_size;
    for (options.dp_rank = 0; options.dp_rank < dp_size; ++options.dp_rank) {
      all.emplace_back();
      for (const MicroBatch& batch : eval_batches(set, options)) {
        all.back().emplace_back();
        for (const Sample& sample : batch.samples)
          all.back().back().push_back(test::numbered_row_id(sample));
      }
    }
    return all;
  }
  test::TemporaryFolder folder_;
};

TEST_F(EvalBatchesTest, EverySampleOnceInFileOrder) {
  const Dataset set = test::numbered_dataset(folder_, {{6, 9, 5, 7}, {8, 6, 6}});
  const BatchOptions options{.rows_per_micro_batch = 2, .packing = false};
  EXPECT_EQ(ranks(set, options, 1),
            (std::vector<std::vector<Values>>{{{0, 1}, {2, 3}, {4, 5}, {6}}}));
  EXPECT_EQ(ranks(set, options, 2),
            (std::vector<std::vector<Values>>{{{0, 2}, {4, 6}}, {{1, 3}, {5}}}));
  EXPECT_EQ(ranks(set, options, 3),
            (std::vector<std::vector<Values>>{{{0, 3}, {6}}, {{1, 4}, {}}, {{2, 5}, {}}}))
      << "every rank has as many micro-batches";
}

TEST_F(EvalBatchesTest, TokenBudgets) {
  const Dataset set = test::numbered_dataset(folder_, {{6, 9, 5, 7, 8, 6, 6}});
  // at most 20 tokens
  const std::vector<std::vector<Values>> expected{{{0, 1, 2}, {3, 4}, {5, 6}}};
  EXPECT_EQ(ranks(set, {.rows_per_micro_batch = 2, .max_length = 10, .packing = true}, 1),
            expected);
  EXPECT_EQ(ranks(set, {.tokens_per_micro_batch = 20, .max_length = 10, .packing = false}, 1),
            expected);
}

TEST_F(EvalBatchesTest, BadRowsAreSkippedAlikeOnAllRanks) {
  std::string rows;
  for (int64_t i = 0; i < 9; ++i)
    rows += i % 3 == 1 ? "bad\n" : test::numbered_row(i, 6);
  const Dataset set({{.path = folder_.write("a.jsonl", rows).string()}},
                    {.on_bad_sample = OnBadSample::kSkip}, test::word_tokenizer(folder_.path()),
                    test::chat_template(), {});
  EXPECT_EQ(ranks(set, {.rows_per_micro_batch = 2, .packing = false}, 2),
            (std::vector<std::vector<Values>>{{{0, 3}, {6}}, {{2, 5}, {8}}}));
}

}  // namespace
}  // namespace retort::data
