// A look at rows finds all that are bad without being tokenised, and none that are good.
#include "recipes/data/row_scan.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "base/checksum.h"
#include "recipes/data/detail/keep_hashes.h"
#include "recipes/data/jsonl.h"
#include "recipes/data/preference.h"
#include "recipes/data/row_hashes.h"
#include "recipes/data/sample.h"
#include "recipes/data/unpaired.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {

class RowScanTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    return folder_.write(name, text).string();
  }
  test::TemporaryFolder folder_;
};

TEST_F(RowScanTest, NamesAllBadRowsAtOnce) {
  const std::string good = "{\"text\": \"w1\"}\n";
  const std::string train =
      write("train.jsonl", good + "{\"text\": \"w1\"\n\n" + good + "{\"text\": 3}\n");
  const std::string eval = write("eval.jsonl", good + "[1]\n");
  const RowScan scan({.train = {{.path = train}},
                      .eval = {{.path = eval}},
                      .check = &check_sample_row,
                      .cache = folder_ / "cache"});
  const RowFindings& found = scan.findings();
  EXPECT_TRUE(scan.wait(Duration(0)));
  EXPECT_EQ(found.rows, 6);
  EXPECT_EQ(scan.num_rows(), 6);
  EXPECT_EQ(scan.num_looked_at(), 6);
  EXPECT_EQ(found.bytes, 3 * 14 + 13 + 11 + 3);
  EXPECT_EQ(found.bad.count(), 3);
  EXPECT_TRUE(found.bad.messages()[0].starts_with(train + ":2: malformed JSON"));
  EXPECT_TRUE(found.bad.messages()[1].starts_with(train + ":5: 'text' is a number"));
  EXPECT_TRUE(found.bad.messages()[2].starts_with(eval + ":2: the line is a JSON array"));

  const std::string said = test::message_of([&] { found.bad.refuse(found.rows); });
  EXPECT_TRUE(said.starts_with("3 of 6 rows are bad; the first: " + train + ":2: malformed"));
  EXPECT_NE(said.find("all: " + train + ":2, 5, " + eval + ":2."), std::string::npos) << said;
}

// The first are named, all are counted; and one alone is told as the run would have met it.
TEST_F(RowScanTest, CountsWhatItDoesNotName) {
  std::string text;
  for (int row = 0; row < 50; ++row)
    text += row % 2 == 0 ? "nonsense\n" : "{\"text\": \"w1\"}\n";
  const std::string many = write("many.jsonl", text);
  const RowScan scan({.train = {{.path = many}}, .eval = {}, .check = &check_sample_row});
  EXPECT_EQ(scan.findings().bad.count(), 25);
  EXPECT_EQ(scan.findings().bad.messages().size(), BadRows::kMostShown);
  const std::string said = scan.findings().bad.text(50);
  EXPECT_NE(said.find(":1, 3, 5"), std::string::npos) << said;
  EXPECT_NE(said.find(", 39 and 5 more."), std::string::npos) << said;

  const std::string one = write("one.jsonl", "{\"text\": \"w1\"}\nnonsense\n");
  const RowScan single({.train = {{.path = one}}, .eval = {}, .check = &check_sample_row});
  EXPECT_TRUE(single.findings().bad.text(2).starts_with(one + ":2: malformed JSON"));
}

TEST_F(RowScanTest, KeepsTheHashesOfTrainingRows) {
  const std::string train = write("train.jsonl", "{\"text\": \"w1\"}\n{\"text\": \"w2\"}\n");
  const std::string eval = write("eval.jsonl", "{\"text\": \"w3\"}\n");
  const RowScan scan({.train = {{.path = train}},
                      .eval = {{.path = eval}},
                      .check = &check_sample_row,
                      .cache = folder_ / "cache"});
  scan.findings();
  const JsonlFile file(train);
  const auto find = [&] { return RowHashes::find(folder_ / "cache", file.fingerprint()); };
  for (int times = 0; !find() && times < 6000; ++times)  // they come behind the look
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto kept = find();
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->size(), 2);
  EXPECT_NE(kept->at(0), kept->at(1));
  EXPECT_FALSE(RowHashes::find(folder_ / "cache", JsonlFile(eval).fingerprint()));
}

// Rows of every form, good and bad: the check never refuses a row that training would take, and
// refuses what needs no tokens to be seen.
TEST_F(RowScanTest, ChecksAreThoseOfTheMakers) {
  const models::Tokenizer tokenizer = test::word_tokenizer(folder_.path());
  const models::ChatTemplate chat = test::chat_template();
  const Source source{.path = "rows.jsonl"};

  const char* rows[] = {
      R"({"text": "w1 w2"})",
      R"({"text": 4})",
      R"({"prompt": "w1", "completion": "w2"})",
      R"({"prompt": "w1", "completion": 5})",
      R"({"prompt": "w1", "completion": "w2", "label": true})",
      R"({"prompt": "w1", "completion": "w2", "label": 1})",
      R"({"prompt": [{"role": "user", "content": "w1"}], "completion": "w2"})",
      R"({"prompt": [{"role": "user", "content": "w1"}],
          "completion": [{"role": "assistant", "content": "w2"}], "label": false})",
      R"({"prompt": "w1", "chosen": " w2", "rejected": " w3"})",
      R"({"chosen": "w1 w2", "rejected": "w1 w3"})",
      R"({"chosen": "w1", "rejected": "w2"})",
      R"({"chosen": "w1"})",
      R"({"prompt": "w1", "chosen": ["w2"], "rejected": "w3"})",
      R"({"messages": [{"role": "user", "content": "w1"},
                       {"role": "assistant", "content": "w2"}]})",
      R"({"messages": [{"role": "user"}]})",
      R"({"messages": []})",
      R"({"messages": [{"role": "user", "content": "w1"}], "tools": 3})",
      R"({"conversations": [{"from": "human", "value": "w1"}, {"from": "gpt", "value": "w2"}]})",
      R"({"conversations": [{"from": "nobody", "value": "w1"}]})",
      R"({"instruction": "w1", "output": "w2"})",
      R"({"instruction": "w1", "output": null})",
      R"({"input_ids": [11, 12, 13]})",
      R"({"input_ids": []})",
      R"({"prompt": "w1", "answer": 4})",
      R"({"prompt": "w1", "answer": [4]})",
      R"({"prompt": 3, "answer": 4})",
      R"({"unknown": 1})",
  };

  // What the check says of a row, beside what its maker does.
  const auto passes = [](auto&& call) { return !test::thrown(call); };
  const SampleOptions options;
  int seen = 0;
  for (const char* row : rows) {
    SCOPED_TRACE(row);
    const std::pair<bool, bool> verdicts[] = {
        {passes([&] { check_sample_row(row, source); }),
         passes([&] { make_sample(row, "r:1", source, tokenizer, chat, options); })},
        {passes([&] { check_prompt_row(row, source); }),
         passes([&] { make_prompt(row, "r:1", source, tokenizer, chat); })},
        {passes([&] { check_preference_row(row, source); }),
         passes([&] { make_preference(row, "r:1", source, tokenizer, chat, 64); })},
        {passes([&] { check_unpaired_row(row, source); }),
         passes([&] { make_unpaired(row, "r:1", source, tokenizer, chat, 64); })}};
    for (const auto& [checked, made] : verdicts) {
      EXPECT_TRUE(checked || !made) << "a good row is refused";
      seen += checked == made ? 1 : 0;
    }
  }
  EXPECT_GE(seen, 4 * static_cast<int>(std::size(rows)) - 4) << "most bad rows are seen so";
}

TEST_F(RowScanTest, EndsWhereverItIs) {
  std::string text;
  for (int row = 0; row < 20'000; ++row)
    text += "{\"text\": \"w1 w2 w3\"}\n";
  const std::string file = write("rows.jsonl", text);
  const RowScan scan({.train = {{.path = file}}, .eval = {}, .check = &check_sample_row});
}

// A run that ends at a bad row needs them, so they are there before it hears of it.
TEST_F(RowScanTest, KeepsTheHashesBeforeItTellsOfBadRows) {
  const std::string train = write("train.jsonl", "{\"text\": \"w1\"}\nnonsense\n");
  const RowScan scan({.train = {{.path = train}},
                      .eval = {},
                      .check = &check_sample_row,
                      .cache = folder_ / "cache"});
  EXPECT_EQ(scan.findings().bad.count(), 1);
  EXPECT_TRUE(RowHashes::find(folder_ / "cache", JsonlFile(train).fingerprint()));
}

TEST_F(RowScanTest, TellsOfAFileThatIsNotThereWhereItIsAsked) {
  const RowScan scan({.train = {{.path = (folder_ / "none.jsonl").string()}},
                      .eval = {},
                      .check = &check_sample_row});
  test::expect_refused("none.jsonl", [&] { scan.findings(); });
}

// Hashing ends at the row at which it is stopped, and leaves nothing.
TEST_F(RowScanTest, HashingStopsAtARow) {
  std::string text;
  for (int row = 0; row < 1000; ++row)
    text += "{\"text\": \"w1\"}\r\n\n";
  const JsonlFile file(write("rows.jsonl", text));
  const auto cache = folder_ / "cache";
  for (const int most : {0, 1, 10}) {
    int asked = 0;
    EXPECT_FALSE(detail::keep_hashes(file, cache, [&] { return asked++ == most; }));
    EXPECT_EQ(asked, most + 1);
    EXPECT_TRUE(!std::filesystem::exists(cache) || std::filesystem::is_empty(cache));
  }

  EXPECT_TRUE(detail::keep_hashes(file, cache, [] { return false; }));
  const auto kept = RowHashes::find(cache, file.fingerprint());
  ASSERT_TRUE(kept);
  ASSERT_EQ(kept->size(), file.size());
  const std::string_view line = file.line(999);
  EXPECT_EQ(kept->at(999), checksum64(std::as_bytes(std::span(line.data(), line.size()))));
}

// Content that becomes another one between the two passes is not kept under the name of either.
TEST_F(RowScanTest, HashesAreOfTheContentThatNamesThem) {
  const std::string path = write("rows.jsonl", "{\"text\": \"w1\"}\n{\"text\": \"w2\"}\n");
  const JsonlFile file(path);
  const auto cache = folder_ / "cache";
  int asked = 0;
  const auto change = [&] {
    if (asked++ == 1) {  // behind the first pass; in its place, so that the map sees it
      std::fstream other(path, std::ios::in | std::ios::out);
      other.seekp(10);
      other << "w7";
    }
    return false;
  };
  test::expect_error(ErrorCode::kCorrupt, "changed while",
                     [&] { detail::keep_hashes(file, cache, change); });
  EXPECT_TRUE(std::filesystem::is_empty(cache));
}

}  // namespace
}  // namespace retort::data
