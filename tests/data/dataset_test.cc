#include "recipes/data/dataset.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {

class DatasetTest : public testing::Test {
 protected:
  Dataset open(std::vector<Source> sources, const DataOptions& options = {}) {
    return Dataset(std::move(sources), options, test::word_tokenizer(folder_.path()),
                   test::chat_template(), folder_.path() / "cache");
  }
  std::string write(const std::string& name, const std::string& text) {
    return folder_.write(name, text).string();
  }
  test::TemporaryFolder folder_;
};

TEST_F(DatasetTest, SourcesFollowEachOther) {
  const std::string a = write("a.jsonl", "{\"text\":\"w1\"}\n\n{\"text\":\"w2\"}\n"),
                    b = write("b.jsonl", "{\"q\":\"w3\",\"r\":\"w4\"}");
  const Dataset set = open(
      {{.path = a}, {.path = b, .columns = {{"prompt", "q"}, {"completion", "r"}}, .weight = 2}});
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(set.num_sources(), 2);
  EXPECT_EQ(set.source_size(0), 2);
  EXPECT_EQ(set.source_size(1), 1);
  EXPECT_EQ(set.source_weight(1), 2.0);
  EXPECT_EQ(set.get(0)->origin, a + ":1");
  EXPECT_EQ(set.get(1)->origin, a + ":3");
  EXPECT_EQ(set.get(1)->input_ids, (std::vector<int32_t>{test::kBos, test::word(2), test::kEos}));
  EXPECT_EQ(set.get(2)->origin, b + ":1");
  EXPECT_EQ(set.get(2)->is_target, (std::vector<uint8_t>{0, 0, 1, 1}));
}

TEST_F(DatasetTest, OptionsReachTheSamples) {
  const std::string a = write("a.jsonl", "{\"prompt\":\"w1 w2\",\"completion\":\"w3 w4\"}\n");
  EXPECT_TRUE(open({{.path = a}}, {.max_length = 4}).get(0)->truncated);
  EXPECT_EQ(open({{.path = a}}, {.completion_only_loss = false}).get(0)->num_targets(), 5);
  EXPECT_EQ(open({{.path = a}}).get(0)->num_targets(), 3);
}

TEST_F(DatasetTest, BadRowsStopOrAreCounted) {
  const std::string rows = "{\"text\":\"w1\"}\nnonsense\n\n{\"text\":\"w2\"}\n{\"text\":\"w3";
  const std::string a = write("a.jsonl", rows);
  const std::string message = test::message_of([&] { open({{.path = a}}).get(1); });
  EXPECT_TRUE(message.starts_with(a + ":2: malformed JSON")) << message;
  EXPECT_TRUE(test::message_of([&] {
                open({{.path = a}}).get(3);
              }).starts_with(a + ":5: malformed JSON: the line ends"));

  const Dataset set = open({{.path = a}}, {.on_bad_sample = OnBadSample::kSkip});
  EXPECT_EQ(set.num_skipped(), 0);
  for (int pass = 0; pass < 2; ++pass)
    for (int64_t row = 0; row < set.size(); ++row)
      EXPECT_EQ(set.get(row).has_value(), row == 0 || row == 2) << row;
  EXPECT_EQ(set.num_skipped(), 2) << "each row counts once";
  EXPECT_TRUE(set.first_skip_reason().starts_with(a + ":2: malformed JSON"));
}

TEST_F(DatasetTest, WarningsAreLimited) {
  std::string rows;
  for (int i = 0; i < 1000; ++i)
    rows += "bad\n";
  const Dataset set =
      open({{.path = write("a.jsonl", rows)}}, {.on_bad_sample = OnBadSample::kSkip});
  testing::internal::CaptureStderr();
  for (int64_t row = 0; row < set.size(); ++row)
    set.get(row);
  const std::string log = testing::internal::GetCapturedStderr();
  // 5 of them, then at 8, 16, ..., 512
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 5 + 7) << log;
  EXPECT_NE(log.find("512 bad samples skipped so far"), std::string::npos);
  EXPECT_NE(log.find("a.jsonl:1: malformed JSON"), std::string::npos);
}

TEST_F(DatasetTest, RefusesEmptySets) {
  EXPECT_NE(test::message_of([&] { open({}); }).find("no data source"), std::string::npos);
  const std::string empty = write("e.jsonl", "\n\n");
  EXPECT_EQ(test::message_of([&] { open({{.path = empty}}); }),
            empty +
                ": holds no rows; expected at least one, which is a JSON object on a line in "
                "JSONL");
  EXPECT_NE(test::message_of([&] {
              open({{.path = write("a.jsonl", "{}"), .weight = 0}});
            }).find("weight"),
            std::string::npos);
}

TEST_F(DatasetTest, FingerprintCoversWhatShapesSamples) {
  const std::string a = write("a.jsonl", "{\"text\":\"w1\"}\n"),
                    same = write("b.jsonl", "{\"text\":\"w1\"}\n");
  const std::string other = write("c.jsonl", "{\"text\":\"w2\"}\n");
  const std::string base = open({{.path = a}}).fingerprint();
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(open({{.path = same}}).fingerprint(), base) << "names do not matter";
  EXPECT_EQ(open({{.path = a, .weight = 3}}).fingerprint(), base) << "the order is not the samples";
  EXPECT_EQ(open({{.path = a}}, {.packing = false}).fingerprint(), base);
  EXPECT_NE(open({{.path = other}}).fingerprint(), base);
  EXPECT_NE(open({{.path = a}, {.path = same}}).fingerprint(), base);
  EXPECT_NE(open({{.path = a, .format = Format::kText}}).fingerprint(), base);
  EXPECT_NE(open({{.path = a, .columns = {{"text", "text"}}}}).fingerprint(), base);
  EXPECT_NE(open({{.path = a}}, {.max_length = 512}).fingerprint(), base);
  EXPECT_NE(open({{.path = a}}, {.completion_only_loss = false}).fingerprint(), base);
  EXPECT_NE(open({{.path = a}}, {.assistant_only_loss = false}).fingerprint(), base);
  const Dataset template_changed({{.path = a}}, {}, test::word_tokenizer(folder_.path()),
                                 test::chat_template("{{ messages }}"), {});
  EXPECT_NE(template_changed.fingerprint(), base);
}

TEST_F(DatasetTest, AnyThreadMayRead) {
  std::string rows;
  for (int i = 0; i < 400; ++i)
    rows += i % 4 ? test::numbered_row(i, 6) : "bad\n";
  const Dataset set =
      open({{.path = write("a.jsonl", rows)}}, {.on_bad_sample = OnBadSample::kSkip});
  std::vector<int64_t> good(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < good.size(); ++t)
    threads.emplace_back([&, t] {
      for (int64_t row = 0; row < set.size(); ++row)
        good[t] += set.get(row).has_value();
    });
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(good, std::vector<int64_t>(4, 300));
  EXPECT_EQ(set.num_skipped(), 100);
}

}  // namespace
}  // namespace retort::data
