// data.packing_strategy: wrapped: rows laid end to end and cut into packs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/data/stream_records.h"

namespace retort::data {
namespace {

using Values = std::vector<int64_t>;

constexpr int64_t kPack = 64;

// What the student reads of one rank's step, and where the next one begins.
struct Laid {
  std::vector<Values> tokens, bounds, targets;  // of each micro-batch
  std::vector<int64_t> cursor;

  bool operator==(const Laid&) const = default;
};

Laid laid(const BatchStream::Step& step) {
  Laid all;
  for (const MicroBatch& batch : step.micro_batches) {
    all.tokens.push_back(test::values(batch.tokens.input_ids));
    all.bounds.push_back(batch.tokens.cu_seqlens);
    all.targets.push_back(test::values(batch.targets));
  }
  const Cursor& after = step.after;
  all.cursor = {after.epoch, after.consumed, after.total, after.window,
                after.consumed_before_window};
  return all;
}

std::vector<Laid> epochs(const std::shared_ptr<const Dataset>& set, const BatchOptions& options,
                         int64_t count, const Cursor& start = {}) {
  BatchStream stream(set, options, start);
  std::vector<Laid> steps;
  for (Cursor at = start; at.epoch < count;) {
    const BatchStream::Step step = stream.next();
    at = step.after;
    steps.push_back(laid(step));
  }
  return steps;
}

// How often each token stands in the steps.
std::map<int64_t, int64_t> counts(const std::vector<Laid>& steps) {
  std::map<int64_t, int64_t> seen;
  for (const Laid& step : steps)
    for (const Values& tokens : step.tokens)
      for (const int64_t token : tokens)
        ++seen[token];
  return seen;
}

class WrappedTest : public testing::Test {
 protected:
  std::shared_ptr<const Dataset> set_of(const std::vector<std::vector<int64_t>>& lengths,
                                        PackingStrategy strategy = PackingStrategy::kWrapped) {
    return std::make_shared<Dataset>(test::numbered_dataset(
        folder_, lengths, {}, {.max_length = kPack, .packing_strategy = strategy}));
  }
  test::TemporaryFolder folder_;
};

// TRL 1.16's pack_dataset(strategy="wrapped") gives these packs for rows of 5, 8 and 6 tokens and 7
// tokens a pack: [0, 7), [7, 14), [14, 19) of the rows end to end.
TEST_F(WrappedTest, RowsGoOnInTheNextPack) {
  const auto set = std::make_shared<Dataset>(test::numbered_dataset(
      folder_, {{5, 8, 6}}, {}, {.max_length = 7, .packing_strategy = PackingStrategy::kWrapped}));
  Values all;
  for (int64_t row = 0; row < 3; ++row) {
    const Sample sample = *set->get(row);
    EXPECT_FALSE(sample.truncated);
    all.insert(all.end(), sample.input_ids.begin(), sample.input_ids.end());
  }
  ASSERT_EQ(all.size(), 19u);

  const auto steps = epochs(
      set, {.rows_per_micro_batch = 1, .max_length = 7, .packing = true, .shuffle = false}, 1);
  ASSERT_EQ(steps.size(), 3u);
  const auto cut = [&](int64_t begin, int64_t end) {
    return Values(all.begin() + begin, all.begin() + end);
  };
  EXPECT_EQ(steps[0].tokens, (std::vector<Values>{cut(0, 7)}));
  EXPECT_EQ(steps[1].tokens, (std::vector<Values>{cut(7, 14)}));
  EXPECT_EQ(steps[2].tokens, (std::vector<Values>{cut(14, 19)}));

  // No attention from one row to another, and nothing predicts the first token of a part.
  EXPECT_EQ(steps[0].bounds, (std::vector<Values>{{0, 5, 7}}));
  EXPECT_EQ(steps[1].bounds, (std::vector<Values>{{0, 6, 7}}));
  EXPECT_EQ(steps[2].bounds, (std::vector<Values>{{0, 5}}));
  EXPECT_EQ(steps[1].targets, (std::vector<Values>{cut(8, 13)}));
  EXPECT_EQ(steps[1].targets[0].back(), test::kEos) << "the end of a row is learnt";
}

// A prompt that is longer than packs fills some without a target, and a batch of those alone would
// have nothing to learn.
TEST_F(WrappedTest, PacksWithoutATargetAreLeftOut) {
  std::string prompt;
  for (int i = 0; i < 50; ++i)
    prompt += " w" + std::to_string(i);
  const auto path = folder_.write(
      "long.jsonl", R"({"prompt": ")" + prompt + R"(", "completion": " w60 w61 w62"})" + "\n" +
                        R"({"prompt": "w1", "completion": " w2"})" + "\n");
  const auto set = std::make_shared<Dataset>(Dataset(
      {{.path = path.string()}}, {.max_length = 16, .packing_strategy = PackingStrategy::kWrapped},
      test::word_tokenizer(folder_.path()), test::chat_template(), folder_.path() / "cache"));
  const auto steps = epochs(
      set, {.rows_per_micro_batch = 1, .max_length = 16, .packing = true, .shuffle = false}, 1);

  int64_t targets = 0;
  for (const Laid& step : steps) {
    EXPECT_FALSE(step.targets.at(0).empty());
    targets += static_cast<int64_t>(step.targets.at(0).size());
  }
  EXPECT_EQ(targets, 4 + 2) << "every word of both completions, and its EOS";
}

TEST_F(WrappedTest, NothingIsLostInAnyLayout) {
  const auto set = set_of({test::some_lengths(1300, 300), test::some_lengths(200, 20, 2)});
  std::map<int64_t, int64_t> expected;
  int64_t tokens = 0;
  for (int64_t row = 0; row < set->size(); ++row) {
    const Sample sample = *set->get(row);
    tokens += static_cast<int64_t>(sample.input_ids.size());
    for (const int32_t token : sample.input_ids)
      ++expected[token];
  }

  for (const bool shuffle : {false, true})
    for (const int64_t dp : {1, 3}) {
      BatchOptions options{.rows_per_micro_batch = 2,
                           .micro_batches = 2,
                           .max_length = kPack,
                           .shuffle = shuffle,
                           .dp_size = dp};
      std::vector<Laid> all;
      for (options.dp_rank = 0; options.dp_rank < dp; ++options.dp_rank)
        for (Laid& step : epochs(set, options, 1))
          all.push_back(std::move(step));
      // Of a window's last pack one token may be left, which nothing predicts.
      int64_t left_out = 0;
      for (const auto& [token, count] : counts(all)) {
        EXPECT_LE(count, expected.at(token));
        left_out += expected.at(token) - count;
      }
      EXPECT_EQ(counts(all).size(), expected.size());
      EXPECT_LE(left_out, 2) << "shuffle " << shuffle << " dp " << dp;
    }
  EXPECT_EQ(set->num_truncated(), 0);

  // Every pack but the last of a window is full.
  const auto packs = epochs(set, {.rows_per_micro_batch = 1, .max_length = kPack}, 1);
  EXPECT_LE(static_cast<int64_t>(packs.size()), tokens / kPack + 2);
}

TEST_F(WrappedTest, AResumedStreamGoesOnInsideARow) {
  const auto set = set_of({test::some_lengths(1100, 300)});
  for (const int64_t budget : {int64_t{0}, int64_t{200}}) {
    const BatchOptions options{.rows_per_micro_batch = 3,
                               .tokens_per_micro_batch = budget,
                               .micro_batches = 2,
                               .max_length = kPack,
                               .dp_rank = 1,
                               .dp_size = 2};
    const std::vector<Laid> whole = epochs(set, options, 2);
    ASSERT_GE(whole.size(), 30u);
    for (size_t stop = 0; stop + 1 < whole.size(); stop += whole.size() / 15) {
      const std::vector<int64_t>& at = whole[stop].cursor;
      const std::vector<Laid> rest = epochs(set, options, 2, {at[0], at[1], at[2], at[3], at[4]});
      ASSERT_EQ(rest, std::vector<Laid>(whole.begin() + static_cast<std::ptrdiff_t>(stop) + 1,
                                        whole.end()))
          << "stopped after step " << stop;

      // The short cut is none that matters.
      BatchStream slow(set, options, {at[0], at[1], at[2]});
      ASSERT_EQ(laid(slow.next()), whole[stop + 1]);
    }
  }
}

TEST_F(WrappedTest, AnEvaluationSeesEveryToken) {
  const auto set = set_of({{5, 200, 64, 65, 9}});
  for (const int64_t dp : {1, 2}) {
    int64_t tokens = 0;
    int64_t targets = 0;
    BatchOptions options{.rows_per_micro_batch = 2, .max_length = kPack, .dp_size = dp};
    for (options.dp_rank = 0; options.dp_rank < dp; ++options.dp_rank)
      for (const MicroBatch& batch : eval_batches(*set, options)) {
        tokens += batch.tokens.num_tokens();
        targets += batch.num_targets();
      }
    EXPECT_EQ(tokens, 343);
    EXPECT_EQ(targets, 343 - 9) << "nine parts: 1, 4, 1, 2 and 1";
  }
}

TEST_F(WrappedTest, IsAnotherSetOfRowsThanTheWholeOnes) {
  const auto whole = set_of({{5, 200, 64, 65, 9}}, PackingStrategy::kWhole);
  // Whole rows are cut, and counted once however often they are read.
  EXPECT_EQ(whole->num_read(), 0);
  for (int repeat = 0; repeat < 2; ++repeat)
    for (int64_t row = 0; row < whole->size(); ++row)
      EXPECT_EQ(whole->get(row)->truncated, row == 1 || row == 3);
  EXPECT_EQ(whole->num_read(), 5);
  EXPECT_EQ(whole->num_truncated(), 2);

  const std::string of_whole_rows = whole->fingerprint();
  EXPECT_NE(set_of({{5, 200, 64, 65, 9}})->fingerprint(), of_whole_rows);
}

}  // namespace
}  // namespace retort::data
