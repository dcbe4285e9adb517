// Which changes of its rows a run may go on with.
#include "recipes/data/resumed_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "recipes/data/batches.h"
#include "recipes/data/detail/order.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {

constexpr int64_t kRows = 3000;

class ResumedRows : public testing::Test {
 protected:
  // Row `i` is a text that says i; those of `changed` say something else.
  std::string text(const std::vector<int64_t>& changed = {}, int64_t rows = kRows) {
    std::string all;
    for (int64_t i = 0; i < rows; ++i) {
      const bool other = std::find(changed.begin(), changed.end(), i) != changed.end();
      all += "{\"text\": \"w" + std::to_string(i % 80) + (other ? " w81" : "") +
             "\", \"n\": " + std::to_string(i) + "}\n";
    }
    return all;
  }
  Dataset open(const std::string& rows, DataOptions options = {}) {
    folder_.write("rows.jsonl", rows);
    return Dataset({{.path = (folder_ / "rows.jsonl").string()}}, options,
                   test::word_tokenizer(folder_.path()), test::chat_template(), folder_ / "cache");
  }
  // That of the run before, whose hashes are kept.
  RowIdentity began(DataOptions options = {}) {
    const Dataset set = open(text(), options);
    set.hashes(0, folder_ / "hashes");
    return set.identity();
  }
  ResumedAt at(std::optional<int64_t> used, bool shuffle = false, int64_t epoch = 0) {
    return {.checkpoint = "run/checkpoint-7",
            .seed = 5,
            .shuffle = shuffle,
            .epoch = epoch,
            .used_places = used,
            .hashes = folder_ / "hashes"};
  }
  test::TemporaryFolder folder_;
};

TEST_F(ResumedRows, AreAcceptedWhereNoneOfThemWasUsed) {
  const RowIdentity before = began();
  EXPECT_TRUE(compare_rows(before, open(text()), at(2048)).empty());

  const auto told = compare_rows(before, open(text({2048, 2999})), at(2048));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0], (folder_ / "rows.jsonl").string() +
                         ": 2 of its 3000 rows changed since run/checkpoint-7, none of which was "
                         "used until then");
}

TEST_F(ResumedRows, AreRefusedByTheFirstThatWasUsed) {
  const RowIdentity before = began();
  const std::string file = (folder_ / "rows.jsonl").string();
  const auto refused = [&](const std::vector<int64_t>& changed, const ResumedAt& point) {
    const Dataset now = open(text(changed));
    return test::message_of([&] { compare_rows(before, now, point); });
  };
  EXPECT_TRUE(refused({2047, 1500, 2500}, at(2048)).starts_with(file + ":1501: the run has used"));
  EXPECT_TRUE(refused({2999}, at(0, false, 1)).starts_with(file + ":3000: ")) << "a second epoch";
  EXPECT_TRUE(refused({2999}, at(std::nullopt)).starts_with(file + ":3000: ")) << "not known";
}

// What was used follows the epoch's order, not that of the file.
TEST_F(ResumedRows, FollowTheOrderOfTheEpoch) {
  const RowIdentity before = began();
  const detail::EpochOrder order({{.rows = kRows, .weight = 1}}, 5, 0, true);
  const int64_t used = order.row(99), unused = order.row(100);
  EXPECT_EQ(compare_rows(before, open(text({unused})), at(100, true)).size(), 1u);
  const Dataset now = open(text({used}));
  test::expect_refused("rows.jsonl:" + std::to_string(used + 1) + ": the run has used this row",
                       [&] { compare_rows(before, now, at(100, true)); });
}

TEST_F(ResumedRows, MustBeAsManyAndHaveHashes) {
  const RowIdentity before = began();
  const Dataset more = open(text({}, kRows + 1));
  test::expect_refused("rows.jsonl: has 3001 rows, and had 3000",
                       [&] { compare_rows(before, more, at(0)); });
  const Dataset mended = open(text({2999}));
  ResumedAt without = at(0);
  without.hashes = folder_ / "nowhere";
  test::expect_refused("which of its rows differ cannot be told",
                       [&] { compare_rows(before, mended, without); });
}

TEST_F(ResumedRows, MayBeSkippedFromHereOnButNotTheOtherWay) {
  const DataOptions skips{.on_bad_sample = OnBadSample::kSkip};
  const RowIdentity erring = began(), skipping = began(skips);
  EXPECT_EQ(erring.shape, skipping.shape);
  const auto told = compare_rows(erring, open(text(), skips), at(100));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("data.on_bad_sample is skip from here on"), std::string::npos);
  const Dataset now = open(text());
  test::expect_refused("changed from skip to error", [&] { compare_rows(skipping, now, at(100)); });
}

TEST_F(ResumedRows, KeepTheirShape) {
  const RowIdentity before = began();
  const Dataset now = open(text(), {.max_length = 77});
  test::expect_refused("what shapes the training rows", [&] { compare_rows(before, now, at(0)); });
}

// A window counts as soon as one of its packs was consumed.
TEST(UsedPlaces, AreWholeWindows) {
  EXPECT_EQ(used_places({}), 0);
  EXPECT_EQ(used_places({.consumed = 1}), kWindowSamples);
  EXPECT_EQ(used_places({.consumed = 40, .window = 1, .consumed_before_window = 40}),
            kWindowSamples);
  EXPECT_EQ(used_places({.consumed = 41, .window = 1, .consumed_before_window = 40}),
            2 * kWindowSamples);
}

}  // namespace
}  // namespace retort::data
