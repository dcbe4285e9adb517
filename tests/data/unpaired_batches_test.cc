#include "recipes/data/unpaired_batches.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/data/stream_records.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::data::unpaired {
namespace {
using test::RowIds, test::values;

UnpairedRow row_of(std::vector<int32_t> prompt, std::vector<int32_t> completion,
                   std::vector<int32_t> other, bool desirable) {
  UnpairedRow row;
  row.sample.prompt_ids = std::move(prompt);
  row.sample.completion_ids = std::move(completion);
  row.sample.desirable = desirable;
  row.other_completion_ids = std::move(other);
  return row;
}

TEST(UnpairedMicroBatch, LaysBothCompletionsOut) {
  const UnpairedMicroBatch batch = make_unpaired_micro_batch(
      {row_of({1, 2}, {3}, {7, 8, 9}, true), row_of({6}, {7, 8, 9}, {3}, false)}, 4);
  EXPECT_EQ(values(batch.own.tokens.input_ids), (RowIds{1, 2, 3, 6, 7, 8, 9}));
  EXPECT_EQ(values(batch.own.tokens.positions), (RowIds{0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(batch.own.tokens.cu_seqlens, (RowIds{0, 3, 7}));
  EXPECT_EQ(values(batch.own.predict_positions), (RowIds{1, 3, 4, 5}));
  EXPECT_EQ(values(batch.own.targets), (RowIds{3, 7, 8, 9}));
  EXPECT_EQ(values(batch.own.sequence_of_row), (RowIds{0, 1, 1, 1}));

  EXPECT_EQ(values(batch.mismatched.tokens.input_ids), (RowIds{1, 2, 7, 8, 6, 3}))
      << "cut at max_length 4 with its new prompt";
  EXPECT_EQ(values(batch.mismatched.sequence_of_row), (RowIds{0, 0, 1}));
  EXPECT_EQ(batch.mismatched.completions[0].completion_ids, (std::vector<int32_t>{7, 8}));
  ASSERT_EQ(batch.num_rows(), 2);
  EXPECT_TRUE(batch.samples[0].desirable);
  EXPECT_FALSE(batch.samples[1].desirable);

  const UnpairedMicroBatch empty = make_unpaired_micro_batch({}, 4);
  EXPECT_EQ(empty.own.tokens.num_tokens(), 0);
  EXPECT_EQ(empty.mismatched.targets.numel(), 0);
  EXPECT_EQ(empty.own.sequence_of_row.numel(), 0);
}

// Row `id` has the field id and a completion that begins with its number in base 90, as two words.
std::string numbered(int64_t id, int64_t length) {
  std::string completion =
      "w" + std::to_string(id / test::kNumWords) + " w" + std::to_string(id % test::kNumWords);
  for (int64_t i = 2; i < length; ++i)
    completion += " w" + std::to_string(i % test::kNumWords);
  return "{\"prompt\":\"w1 w2\",\"completion\":\"" + completion +
         "\",\"label\":" + (id % 3 == 0 ? "true" : "false") + ",\"id\":" + std::to_string(id) +
         "}\n";
}
int64_t id_of(const UnpairedSample& sample) { return std::stoll(sample.fields.at(0).second); }
// Whose completion it is.
int64_t author_of(const PromptedCompletion& one) {
  const auto digit = [&](size_t at) { return int64_t{one.completion_ids.at(at) - test::word(0)}; };
  return digit(0) * test::kNumWords + digit(1);
}

std::shared_ptr<const UnpairedDataset> dataset(const test::TemporaryFolder& folder,
                                               const std::vector<int64_t>& lengths,
                                               int64_t bad_every = 0, DataOptions options = {}) {
  std::string rows;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    const bool bad = bad_every > 0 && id % bad_every == bad_every - 1;
    rows += bad ? "bad\n" : numbered(id, lengths[i]);
  }
  if (bad_every > 0) options.on_bad_sample = OnBadSample::kSkip;
  const Source source{.path = folder.write("labels.jsonl", rows).string()};
  return std::make_shared<UnpairedDataset>(std::vector<Source>{source}, options,
                                           test::word_tokenizer(folder.path()),
                                           test::chat_template(), folder.path() / "cache");
}

struct Place {
  int64_t id, other;  // of the row, and of the row whose completion it is mismatched with
  bool operator==(const Place&) const = default;
};
struct Step {
  std::vector<std::vector<Place>> micro_batches;
  std::vector<int64_t> tokens;  // of the rows' own completions
  Cursor after;
};

std::vector<Place> places_of(const UnpairedMicroBatch& batch) {
  std::vector<Place> places;
  for (size_t i = 0; i < batch.samples.size(); ++i) {
    EXPECT_EQ(author_of(batch.own.completions[i]), id_of(batch.samples[i]));
    places.push_back({id_of(batch.samples[i]), author_of(batch.mismatched.completions[i])});
  }
  return places;
}
Step record(const UnpairedBatchStream::Step& step) {
  Step result{{}, {}, step.after};
  for (const UnpairedMicroBatch& batch : step.micro_batches) {
    result.micro_batches.push_back(places_of(batch));
    result.tokens.push_back(batch.own.tokens.num_tokens());
  }
  return result;
}

using Ranks = std::vector<std::vector<Step>>;
Ranks run(const std::shared_ptr<const UnpairedDataset>& set, BatchOptions options, int64_t dp,
          int64_t epochs) {
  Ranks ranks;
  options.dp_size = dp;
  for (options.dp_rank = 0; options.dp_rank < dp; ++options.dp_rank) {
    UnpairedBatchStream stream(set, options);
    ranks.emplace_back();
    do
      ranks.back().push_back(record(stream.next()));
    while (ranks.back().back().after.epoch < epochs);
  }
  return ranks;
}

// A step's rows on all ranks, by id.
std::vector<Place> global(const Ranks& ranks, size_t s) {
  std::vector<Place> all;
  for (const auto& rank : ranks)
    for (const auto& places : rank.at(s).micro_batches)
      all.insert(all.end(), places.begin(), places.end());
  std::sort(all.begin(), all.end(), [](const Place& a, const Place& b) { return a.id < b.id; });
  return all;
}

class UnpairedBatchStreamTest : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
};

TEST_F(UnpairedBatchStreamTest, EachRowGetsTheCompletionOfTheRowBefore) {
  const auto set = dataset(folder_, {4, 4, 4, 4, 4, 4, 4});
  const auto ranks = run(set, {.rows_per_micro_batch = 3, .shuffle = false}, 1, 1);
  ASSERT_EQ(ranks[0].size(), 3u);
  using Places = std::vector<std::vector<Place>>;
  EXPECT_EQ(ranks[0][0].micro_batches, (Places{{{0, 2}, {1, 0}, {2, 1}}}));
  EXPECT_EQ(ranks[0][1].micro_batches, (Places{{{3, 5}, {4, 3}, {5, 4}}}));
  EXPECT_EQ(ranks[0][2].micro_batches, (Places{{{6, 6}}})) << "alone it has its own";
  EXPECT_EQ(UnpairedBatchStream(set, {.rows_per_micro_batch = 3}).steps_per_epoch(), 3);

  const auto two = run(set, {.rows_per_micro_batch = 2, .shuffle = false}, 2, 1);
  EXPECT_EQ(two[0][0].micro_batches, (Places{{{0, 3}, {2, 1}}}));
  EXPECT_EQ(two[1][0].micro_batches, (Places{{{1, 0}, {3, 2}}}));
  EXPECT_EQ(two[0][1].micro_batches, (Places{{{4, 6}, {6, 5}}}));
  EXPECT_EQ(two[1][1].micro_batches, (Places{{{5, 4}}}));
  const auto four = run(set, {.rows_per_micro_batch = 1, .shuffle = false}, 4, 1);
  EXPECT_EQ(four[3][1].micro_batches, (Places{{}})) << "a rank without a row takes part";
}

TEST_F(UnpairedBatchStreamTest, NeitherRowsNorMismatchesDependOnTheLayout) {
  const auto set = dataset(folder_, test::some_lengths(1500, 40), 10, {.max_length = 50});
  for (const int64_t tokens : {int64_t{0}, int64_t{200}}) {
    BatchOptions more{
        .rows_per_micro_batch = 3, .tokens_per_micro_batch = tokens, .micro_batches = 6};
    const auto one = run(set, more, 1, 1);
    for (const int64_t dp : {2, 3}) {
      BatchOptions options = more;
      options.micro_batches = 6 / dp;
      const auto ranks = run(set, options, dp, 1);
      ASSERT_EQ(ranks[0].size(), one[0].size()) << tokens << " dp " << dp;
      for (size_t s = 0; s < one[0].size(); ++s) {
        EXPECT_EQ(global(ranks, s), global(one, s)) << tokens << " dp " << dp << " step " << s;
        for (const auto& rank : ranks) {
          EXPECT_EQ(static_cast<int64_t>(rank[s].micro_batches.size()), 6 / dp);
          for (const int64_t used : rank[s].tokens)
            EXPECT_LE(used, tokens > 0 ? tokens : 150);
        }
      }
    }

    RowIds seen;
    for (size_t s = 0; s < one[0].size(); ++s)
      for (const Place& place : global(one, s))
        seen.push_back(place.id);
    std::sort(seen.begin(), seen.end());
    RowIds good;
    for (int64_t i = 0; i < 1500; ++i)
      if (i % 10 != 9) good.push_back(i);
    EXPECT_EQ(seen, good) << tokens;
  }
}

// In every global batch of two rows and more each completion serves once with its own prompt and
// once with another.
TEST_F(UnpairedBatchStreamTest, MismatchesAreThoseOfTheBatch) {
  const auto set = dataset(folder_, test::some_lengths(400, 30), 0, {.max_length = 50});
  for (const int64_t tokens : {int64_t{0}, int64_t{200}}) {
    const BatchOptions options{
        .rows_per_micro_batch = 3, .tokens_per_micro_batch = tokens, .micro_batches = 2};
    const auto ranks = run(set, options, 2, 1);
    for (size_t s = 0; s < ranks[0].size(); ++s) {
      RowIds ids, others;
      for (const Place& place : global(ranks, s)) {
        ids.push_back(place.id);
        others.push_back(place.other);
        if (global(ranks, s).size() > 1) {
          EXPECT_NE(place.id, place.other);
        }
      }
      std::sort(others.begin(), others.end());
      EXPECT_EQ(ids, others) << "step " << s;
    }
  }
}

TEST_F(UnpairedBatchStreamTest, GrowsItsSteps) {
  const auto set = dataset(folder_, std::vector<int64_t>(60, 4));
  const BatchOptions options{.rows_per_micro_batch = 2, .micro_batches = 3, .rampup_steps = 4};
  const auto ranks = run(set, options, 2, 1);
  std::vector<size_t> counts;
  for (size_t s = 0; s < 5; ++s) {
    counts.push_back(ranks[0][s].micro_batches.size());
    EXPECT_EQ(global(ranks, s).size(), 4 * counts.back());
  }
  EXPECT_EQ(counts, (std::vector<size_t>{1, 1, 2, 2, 3}));
}

TEST_F(UnpairedBatchStreamTest, ResumesExactly) {
  const auto set = dataset(folder_, test::some_lengths(2300, 20), 7, {.max_length = 30});
  for (const int64_t tokens : {int64_t{0}, int64_t{150}}) {
    BatchOptions options{.rows_per_micro_batch = 5,
                         .tokens_per_micro_batch = tokens,
                         .micro_batches = 2,
                         .dp_size = 2};
    for (options.dp_rank = 0; options.dp_rank < 2; ++options.dp_rank) {
      const auto whole = run(set, options, 2, 2)[static_cast<size_t>(options.dp_rank)];
      for (size_t stop = 0; stop + 1 < whole.size(); stop += whole.size() / 7) {
        UnpairedBatchStream resumed(set, options, whole[stop].after);
        for (size_t s = stop + 1; s < std::min(whole.size(), stop + 3); ++s) {
          const Step step = record(resumed.next());
          ASSERT_EQ(step.micro_batches, whole[s].micro_batches)
              << "stopped after " << stop << ", differs at " << s;
          ASSERT_EQ(step.after.consumed, whole[s].after.consumed);
        }
      }
    }
  }
}

TEST_F(UnpairedBatchStreamTest, RefusesWhatCannotWork) {
  const auto set = dataset(folder_, {4, 4}, 0, {.max_length = 50});
  const auto message = [&](const BatchOptions& options) {
    return test::message_of([&] { UnpairedBatchStream stream(set, options); });
  };
  EXPECT_NE(message({.tokens_per_micro_batch = 49}).find("at least data.max_length (50)"),
            std::string::npos);
  EXPECT_NO_THROW(UnpairedBatchStream(set, {.tokens_per_micro_batch = 50}));
  EXPECT_NE(message({.tokens_per_micro_batch = 50, .rampup_steps = 2})
                .find("does not go with tokens_per_batch"),
            std::string::npos);
  EXPECT_NE(message({.rows_per_micro_batch = 0}).find("per_device_train_batch_size"),
            std::string::npos);
  EXPECT_NE(message({.dp_rank = 2, .dp_size = 2}).find("dp rank 2 of 2"), std::string::npos);
  EXPECT_NE(message({.packing = false}).find("packing: false has no effect"), std::string::npos);
  EXPECT_NE(
      message({.max_length = 64}).find("max_length of the batches is 64, of the completions 50"),
      std::string::npos);
  const auto bad = dataset(folder_, {4, 4}, 1);
  UnpairedBatchStream stream(bad, {});
  EXPECT_NE(test::message_of([&] { stream.next(); }).find("all 2 rows were skipped"),
            std::string::npos);
}

TEST_F(UnpairedBatchStreamTest, EvaluationSeesEveryRowOnce) {
  const auto set = dataset(folder_, {4, 4, 4, 4, 4, 4, 4}, 4, {.max_length = 30});
  for (const int64_t tokens : {int64_t{0}, int64_t{40}}) {
    std::vector<Place> all;
    size_t batches = 0;
    for (const int64_t rank : {0, 1}) {
      const auto mine = eval_unpaired_batches(*set, {.rows_per_micro_batch = 2,
                                                     .tokens_per_micro_batch = tokens,
                                                     .dp_rank = rank,
                                                     .dp_size = 2});
      EXPECT_TRUE(rank == 0 || mine.size() == batches);
      batches = mine.size();
      for (const auto& batch : mine) {
        const auto places = places_of(batch);
        all.insert(all.end(), places.begin(), places.end());
      }
    }
    std::sort(all.begin(), all.end(), [](const Place& a, const Place& b) { return a.id < b.id; });
    EXPECT_EQ(all, (std::vector<Place>{{0, 6}, {1, 0}, {2, 1}, {4, 2}, {5, 4}, {6, 5}})) << tokens;
  }
}

}  // namespace
}  // namespace retort::data::unpaired
