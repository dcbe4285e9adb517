// data.tokenized_cache: the samples that are kept are those that are made.
#include "recipes/data/detail/token_file.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/data/word_tokenizer.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
namespace fs = std::filesystem;

class TokenFileTest : public test::FolderTest {
 protected:
  TokenFileTest() {
    fs::create_directories(folder_ / "tokenizer");
    put(folder_ / "rows.jsonl",
        "{\"prompt\":\"w1 w2\",\"completion\":\"w3\",\"domain\":\"a\",\"score\":1.5}\n"
        "{\"text\":\"w1 w2 w3 w4 w5 w6 w7 w8\"}\n"
        "nonsense\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"w1\"},"
        "{\"role\":\"assistant\",\"content\":\"w2\"}]}\n"
        "{\"input_ids\":[20,21,22],\"labels\":[-100,21,-100]}\n");
  }
  // Of a run, with its tokens kept or not.
  Dataset open(bool kept, DataOptions options = {.max_length = 6}, const std::string& rows = "") {
    if (kept) options.tokenized_cache = tokens_.string();
    return Dataset({{.path = (folder_ / (rows.empty() ? "rows.jsonl" : rows)).string()}}, options,
                   test::word_tokenizer(folder_ / "tokenizer"), test::chat_template(),
                   folder_ / "cache");
  }
  std::vector<fs::path> files() const {
    if (!fs::exists(tokens_)) return {};
    return {fs::directory_iterator(tokens_), {}};
  }
  static void expect_same(const Sample& a, const Sample& b) {
    EXPECT_EQ(a.input_ids, b.input_ids) << a.origin;
    EXPECT_EQ(a.is_target, b.is_target) << a.origin;
    EXPECT_EQ(a.fields, b.fields) << a.origin;
    EXPECT_EQ(a.origin, b.origin);
    EXPECT_EQ(a.truncated, b.truncated) << a.origin;
  }

  const fs::path tokens_ = folder_ / "tokens";
};

TEST_F(TokenFileTest, HasTheSamplesThatAreMade) {
  const Dataset made = open(false), kept = open(true), again = open(true);
  ASSERT_EQ(files().size(), 1u);
  for (const int64_t row : {0, 1, 3, 4})
    for (const Dataset* set : {&kept, &again})
      expect_same(*set->get(row), *made.get(row));
  EXPECT_EQ(kept.get(0)->fields.size(), 2u);
  EXPECT_TRUE(kept.get(1)->truncated);
  EXPECT_EQ(kept.num_truncated(), 1);
  EXPECT_EQ(kept.num_read(), 4);
  EXPECT_EQ(kept.fingerprint(), made.fingerprint()) << "a run goes on with or without it";
}

TEST_F(TokenFileTest, BadRowsAreWhatTheyWere) {
  const Dataset made = open(false), kept = open(true);
  const std::string message = test::message_of([&] { made.get(2); });
  EXPECT_EQ(test::message_of([&] { kept.get(2); }), message);

  const Dataset skipping = open(true, {.max_length = 6, .on_bad_sample = OnBadSample::kSkip});
  EXPECT_FALSE(skipping.get(2));
  EXPECT_EQ(skipping.num_skipped(), 1);
  EXPECT_EQ(skipping.first_skip_reason(), message);
}

TEST_F(TokenFileTest, WhatShapesSamplesHasAnotherFile) {
  open(true);
  open(true, {.max_length = 5});
  open(true, {.max_length = 6, .completion_only_loss = false});
  put(folder_ / "other.jsonl", "{\"text\":\"w1\"}\n");
  open(true, {.max_length = 6}, "other.jsonl");
  EXPECT_EQ(files().size(), 4u);
  EXPECT_EQ(open(true, {.max_length = 5}).get(1)->input_ids.size(), 5u);
}

TEST_F(TokenFileTest, IsMadeOnceByAllWhoWantIt) {
  open(false);  // the cache and the tokenizer's files are there
  std::vector<std::thread> ranks;
  const DataOptions options{.max_length = 6, .tokenized_cache = tokens_.string()};
  const models::Tokenizer tokenizer = test::word_tokenizer(folder_ / "tokenizer");
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&] {
      const Dataset set({{.path = (folder_ / "rows.jsonl").string()}}, options, tokenizer,
                        test::chat_template(), folder_ / "cache");
      EXPECT_EQ(set.get(4)->input_ids, (std::vector<int32_t>{20, 21, 22}));
    });
  for (std::thread& rank : ranks)
    rank.join();
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(TokenFileTest, CommandsThatLookAtDataMakeNone) {
  const DataOptions options{.max_length = 6, .tokenized_cache = tokens_.string()};
  const Dataset set({{.path = (folder_ / "rows.jsonl").string()}}, options,
                    test::word_tokenizer(folder_ / "tokenizer"), test::chat_template(), "");
  EXPECT_TRUE(set.get(0));
  EXPECT_TRUE(files().empty());
}

TEST_F(TokenFileTest, DamageIsFoundAndNamed) {
  open(true);
  const fs::path file = files().at(0);
  const std::string whole = get(file);
  const auto expect_corrupt = [&](const std::string& bytes, const std::string& part) {
    put(file, bytes);
    test::expect_error(ErrorCode::kCorrupt, file.string() + ": " + part,
                       [&] { open(true).get(0); });
  };
  std::string bytes = whole;
  bytes[40] ^= 1;
  expect_corrupt(bytes, "row 0 is damaged");
  bytes = whole;
  bytes[bytes.size() - 8 * 7 + 3] ^= 0x40;  // where row 0 begins
  expect_corrupt(bytes, "row 0 lies outside");
  expect_corrupt(whole.substr(0, whole.size() - 1), "is no file of the tokens of 5 rows");
  expect_corrupt("", "is no file of the tokens of 5 rows");
}

// Many rows, by several threads, in their order.
TEST_F(TokenFileTest, KeepsTheOrderOfManyRows) {
  std::string text;
  for (int i = 0; i < 5000; ++i)
    text += test::numbered_row(i, 5 + i % 9);
  put(folder_ / "many.jsonl", text);
  const Dataset kept = open(true, {.max_length = 64}, "many.jsonl");
  for (int64_t row = 0; row < 5000; ++row)
    ASSERT_EQ(test::numbered_row_id(*kept.get(row)), row);
}

}  // namespace
}  // namespace retort::data
