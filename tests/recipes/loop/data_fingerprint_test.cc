// The fingerprint of rows that is made beside the first steps: what waits for it, and what the
// ranks compare.
#include "recipes/run/rows/data_fingerprint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "recipes/data/detail/line_index.h"
#include "tests/data/word_tokenizer.h"
#include "tests/recipes/loop/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace retort::recipes {
namespace {

constexpr const char* kRows = "{\"text\": \"w1\"}\n{\"text\": \"w2\"}\n";

// Rows whose fingerprint is made once that is allowed, or fails then.
class HeldRows : public data::RowSet {
 public:
  HeldRows(const std::string& path, models::Tokenizer tokenizer, std::shared_future<void> allowed,
           std::string failure, const std::filesystem::path& cache = {})
      : RowSet(std::vector<data::Source>{{.path = path}}, data::DataOptions{}, std::move(tokenizer),
               test::chat_template(), cache),
        allowed_(std::move(allowed)),
        failure_(std::move(failure)) {}
  bool usable(int64_t) const override { return true; }

 private:
  Shaping shaping() const override {
    allowed_.wait();
    if (!failure_.empty()) throw Error(ErrorCode::kCorrupt, failure_);
    return {.kind = "held", .options = ""};
  }

  std::shared_future<void> allowed_;
  std::string failure_;
};

class RowDigestTest : public testing::Test {
 protected:
  // Each rank's error of `use`. The second rank reads `others`, or fails.
  std::vector<std::string> errors_of(
      const std::string& others, const std::string& failure,
      const std::function<void(DataFingerprint& digest, const data::RowSet& rows)>& use) {
    const models::Tokenizer tokenizer = test::word_tokenizer(folder_.path());
    const std::string paths[] = {folder_.write("a.jsonl", kRows).string(),
                                 folder_.write("b.jsonl", others).string()};
    std::vector<std::string> texts;
    for (const auto& error : test::run_rank_threads(2, [&](parallel::World& world) {
           const bool second = world.rank() == 1;
           const HeldRows rows(paths[second ? 1 : 0], tokenizer, allowed_, second ? failure : "");
           DataFingerprint digest(rows, world);
           use(digest, rows);
         }))
      texts.push_back(error ? error->message() : "");
    return texts;
  }
  std::vector<std::string> errors_of(
      const std::function<void(DataFingerprint& digest, const data::RowSet& rows)>& use) {
    return errors_of(kRows, "", use);
  }
  // On whichever rank comes first: a rank is never further than the last collective of the other.
  void allow() {
    std::call_once(once_, [this] { allow_.set_value(); });
  }

  test::TemporaryFolder folder_;
  std::promise<void> allow_;
  std::shared_future<void> allowed_ = allow_.get_future().share();
  std::once_flag once_;
};

TEST_F(RowDigestTest, IsMadeBesideStepsAndIsInEachCheckpoint) {
  for (const std::string& error : errors_of([&](DataFingerprint&digest, const data::RowSet&rows) {
         digest.wait_before_training(Duration(0));
         digest.after_step();
         digest.after_step();
         allow();
         LoopState state;
         digest.complete(state);
         EXPECT_EQ(state.data_fingerprint, rows.fingerprint());
         ASSERT_TRUE(state.rows);
         EXPECT_EQ(state.rows->shape, rows.identity().shape);
         EXPECT_EQ(state.rows->files.at(0).rows, 2);
         digest.after_step();
       }))
    EXPECT_EQ(error, "");
}

// Of a small file it is there before the first step.
TEST_F(RowDigestTest, IsComparedBeforeTheFirstStepWhereItIsMade) {
  allow();
  for (const std::string& error :
       errors_of("{\"text\": \"w3\"}\n", "", [](DataFingerprint&digest, const data::RowSet&) {
         digest.wait_before_training(std::chrono::minutes(1));
       }))
    EXPECT_TRUE(error.starts_with("student/1 read other training data")) << error;
}

TEST_F(RowDigestTest, NoCheckpointIsOfRanksThatReadOtherRows) {
  for (const std::string& error :
       errors_of("{\"text\": \"w3\"}\n", "", [&](DataFingerprint&digest, const data::RowSet&) {
         digest.wait_before_training(Duration(0));
         digest.after_step();
         allow();
         LoopState state;
         digest.complete(state);
       }))
    EXPECT_TRUE(error.starts_with("student/1 read other training data")) << error;
}

// The step behind which all have it ends the run, long before a checkpoint.
TEST_F(RowDigestTest, AStepFindsThatRanksReadOtherRows) {
  for (const std::string& error :
       errors_of("{\"text\": \"w3\"}\n", "", [&](DataFingerprint&digest, const data::RowSet&) {
         digest.wait_before_training(Duration(0));
         allow();
         for (;;)
           digest.after_step();
       }))
    EXPECT_TRUE(error.starts_with("student/1 read other training data")) << error;
}

TEST_F(RowDigestTest, AFailureOfOneRankIsEveryRanks) {
  for (const std::string& error :
       errors_of(kRows, "b.jsonl: was changed", [&](DataFingerprint&digest, const data::RowSet&) {
         digest.wait_before_training(Duration(0));
         allow();
         digest.finish();
       }))
    EXPECT_NE(error.find("b.jsonl: was changed"), std::string::npos) << error;
}

// As an error of a step does: nobody waits for gigabytes, nor for who makes the hash of them.
TEST_F(RowDigestTest, ARunThatEndsDoesNotWaitForIt) {
  std::string text = kRows;
  text.resize(size_t{65} << 20, ' ');
  const std::string path = folder_.write("large.jsonl", text).string();
  const auto cache = folder_.path() / "cache";
  std::filesystem::create_directories(cache);
  // Another one makes it, and never ends.
  const auto name = data::detail::kept_name(path, text) + ".lock";
  const int held = ::open((cache / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  allow();

  const models::Tokenizer tokenizer = test::word_tokenizer(folder_.path());
  for (const auto& error : test::run_rank_threads(1, [&](parallel::World& world) {
         const HeldRows rows(path, tokenizer, allowed_, "", cache);
         DataFingerprint digest(rows, world);
         digest.wait_before_training(Duration(0));
         digest.after_step();
         throw Error(ErrorCode::kInvalidArgument, "a step failed");
       })) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->message(), "a step failed");
  }
  ::close(held);
}

}  // namespace
}  // namespace retort::recipes
