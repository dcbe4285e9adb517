// What the ranks of a student hear of bad rows: before training, beside it, and with skip.
#include "recipes/run/rows/row_look.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "tests/recipes/loop/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace retort::recipes {
namespace {

class RowLookTest : public testing::Test {
 protected:
  // Rows of which so many at the end are cut.
  RankContext context_of(int64_t rows, int64_t bad, data::OnBadSample on_bad_sample) {
    std::string text;
    for (int64_t row = 0; row < rows; ++row)
      text += row < rows - bad ? "{\"text\": \"some words of a row\"}\n" : "{\"text\": \n";
    RankContext context;
    context.run_folder = folder_ / "run";
    context.recipe.data.train = {{.path = folder_.write("rows.jsonl", text).string()}};
    context.recipe.data.on_bad_sample = on_bad_sample;
    context.report = [this](const std::string&, int64_t, const std::string& message) {
      const std::lock_guard lock(mutex_);
      told_.push_back(message);
    };
    return context;
  }
  // Each rank's error.
  std::vector<std::string> errors_of(const RankContext& context,
                                     const std::function<void(RowLook& look)>& use) {
    std::vector<std::string> texts;
    for (const auto& error : test::run_rank_threads(2, [&](parallel::World& world) {
           RowLook look(context, world);
           use(look);
         }))
      texts.push_back(error ? error->message() : "");
    return texts;
  }

  test::TemporaryFolder folder_;
  std::mutex mutex_;
  std::vector<std::string> told_;
};

TEST_F(RowLookTest, EndsTheRunOnAllRanksBeforeItsFirstStep) {
  const RankContext context = context_of(20, 3, data::OnBadSample::kError);
  for (const std::string& error :
       errors_of(context, [](RowLook& look) { look.wait_before_training(); })) {
    EXPECT_TRUE(error.starts_with("3 of 20 rows are bad")) << error;
    EXPECT_NE(error.find("rows.jsonl:18, 19, 20"), std::string::npos) << error;
  }
}

// Rows that are found beside training end it behind a step, on all ranks alike.
TEST_F(RowLookTest, EndsTheRunBesideTraining) {
  const RankContext context = context_of(200'000, 2, data::OnBadSample::kError);
  const auto errors = errors_of(context, [](RowLook& look) {
    look.wait_before_training(Duration(0));
    // The first rank alone knows; the loop tells the others.
    if (look.looks())
      while (!look.must_end(7))
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    else
      EXPECT_FALSE(look.must_end(7));
    look.refuse_if_bad();
  });
  for (const std::string& error : errors)
    EXPECT_TRUE(error.starts_with("2 of 200000 rows are bad")) << error;
}

TEST_F(RowLookTest, TellsOfRowsThatAreLeftOut) {
  const RankContext context = context_of(20, 3, data::OnBadSample::kSkip);
  for (const std::string& error : errors_of(context, [](RowLook& look) {
         look.wait_before_training();
         EXPECT_FALSE(look.must_end(1));
         look.refuse_if_bad();
         look.end();
       }))
    EXPECT_EQ(error, "");
  ASSERT_EQ(told_.size(), 1U) << "once, by the first rank";
  EXPECT_TRUE(told_[0].starts_with("3 of 20 rows are bad and are left out")) << told_[0];
}

TEST_F(RowLookTest, SaysNothingOfGoodRows) {
  const RankContext context = context_of(20, 0, data::OnBadSample::kError);
  for (const std::string& error : errors_of(context, [](RowLook& look) {
         look.wait_before_training();
         EXPECT_FALSE(look.must_end(1));
         look.refuse_if_bad();
       }))
    EXPECT_EQ(error, "");
  EXPECT_TRUE(told_.empty());
}

}  // namespace
}  // namespace retort::recipes
