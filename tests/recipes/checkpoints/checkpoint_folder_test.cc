#include "recipes/run/checkpoints/checkpoint_folder.h"

#include "tests/support/folder_fixture.h"

namespace retort::test {
namespace {

class CheckpointsTest : public FolderTest {
 protected:
  // A complete checkpoint as far as its folder goes.
  void checkpoint(int64_t step, bool complete = true) const {
    const auto path = folder_ / ("checkpoint-" + std::to_string(step));
    put(path / "config.json", "{}");
    if (complete) put(path / "state" / "COMPLETE", "complete\n");
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> result;
    for (const auto& entry : recipes::list_checkpoints(folder_))
      result.push_back(entry.step);
    return result;
  }
};

TEST_F(CheckpointsTest, OnlyCompleteOnesCountInOrderOfSteps) {
  EXPECT_FALSE(recipes::latest_checkpoint(folder_ / "missing"));
  EXPECT_FALSE(recipes::latest_checkpoint(folder_));
  for (int64_t step : {100, 20, 9})
    checkpoint(step);
  checkpoint(200, false);                                       // a crash before the marker
  put(folder_ / "checkpoint-300" / "state" / "COMPLETE", "x");  // no model
  put(folder_ / "checkpoint-400.tmp-17" / "config.json", "{}");
  put(folder_ / "checkpoint-400.tmp-17" / "state" / "COMPLETE", "x");
  put(folder_ / "checkpoint-x" / "config.json", "{}");
  EXPECT_EQ(steps(), (std::vector<int64_t>{9, 20, 100}));
  EXPECT_EQ(recipes::latest_checkpoint(folder_)->path, folder_ / "checkpoint-100");
}

TEST_F(CheckpointsTest, MarkCompleteMakesOneCount) {
  checkpoint(5, false);
  EXPECT_TRUE(steps().empty());
  recipes::mark_complete(recipes::checkpoint_path(folder_, 5));
  EXPECT_EQ(steps(), (std::vector<int64_t>{5}));
}

TEST_F(CheckpointsTest, PruningKeepsTheNewest) {
  for (int64_t step : {1, 2, 3, 10})
    checkpoint(step);
  recipes::prune_checkpoints(folder_, 0);
  EXPECT_EQ(steps().size(), 4u) << "0 keeps all";
  recipes::prune_checkpoints(folder_, 2);
  EXPECT_EQ(steps(), (std::vector<int64_t>{3, 10}));
  recipes::prune_checkpoints(folder_, 1);
  EXPECT_EQ(steps(), (std::vector<int64_t>{10}));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoint-3"));
}

// Those that somebody needs stay besides the newest ones.
TEST_F(CheckpointsTest, PruningKeepsTheStepsThatItIsTold) {
  for (int64_t step : {1, 2, 3, 4, 5})
    checkpoint(step);
  recipes::prune_checkpoints(folder_, 2, {2});
  EXPECT_EQ(steps(), (std::vector<int64_t>{2, 4, 5}));
  recipes::prune_checkpoints(folder_, 1, {2, 5});
  EXPECT_EQ(steps(), (std::vector<int64_t>{2, 5})) << "the newest one counts, also as the best";
  recipes::prune_checkpoints(folder_, 1);
  EXPECT_EQ(steps(), (std::vector<int64_t>{5}));
}

TEST_F(CheckpointsTest, TheOldestThatNobodyNeedsMakesRoom) {
  for (int64_t step : {1, 2, 3})
    checkpoint(step);
  EXPECT_EQ(recipes::drop_oldest_checkpoint(folder_, {1}), folder_ / "checkpoint-2");
  EXPECT_EQ(recipes::drop_oldest_checkpoint(folder_, {1}), std::nullopt);
  EXPECT_EQ(recipes::drop_oldest_checkpoint(folder_), folder_ / "checkpoint-1");
  EXPECT_EQ(recipes::drop_oldest_checkpoint(folder_), std::nullopt);
}

TEST_F(CheckpointsTest, PruningRemovesWhatCrashesLeft) {
  checkpoint(5);
  checkpoint(4, false);
  checkpoint(6, false);  // newer than every complete one: perhaps being written
  put(folder_ / "checkpoint-3.tmp-99" / "config.json", "{}");
  put(folder_ / "notes.txt", "mine");
  recipes::prune_checkpoints(folder_, 3);
  EXPECT_EQ(steps(), (std::vector<int64_t>{5}));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoint-4"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoint-3.tmp-99"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "checkpoint-6"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "notes.txt"));
}

// What is damaged makes room for the one before it. It may be whole after all, so it is the last to
// count among those that are kept.
TEST_F(CheckpointsTest, OneThatIsSetAsideCountsLast) {
  for (int64_t step : {1, 2, 3})
    checkpoint(step);
  EXPECT_EQ(recipes::checkpoint_before(folder_ / "checkpoint-3")->step, 2);
  EXPECT_EQ(recipes::checkpoint_before(folder_ / "checkpoint-1"), std::nullopt);
  EXPECT_EQ(recipes::set_aside(folder_, 3), folder_ / "checkpoint-3.damaged");
  checkpoint(3);
  EXPECT_EQ(recipes::set_aside(folder_, 3), folder_ / "checkpoint-3.damaged-2");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "checkpoint-3.damaged-2/config.json"));
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
  const auto num_aside = [&] { return recipes::list_set_aside(folder_).size(); };
  ASSERT_EQ(num_aside(), 2U);
  EXPECT_EQ(recipes::list_set_aside(folder_)[0].step, 3);

  recipes::prune_checkpoints(folder_, 1);
  EXPECT_EQ(num_aside(), 2U) << "there is nothing newer";
  checkpoint(4);
  recipes::prune_checkpoints(folder_, 0);
  EXPECT_EQ(num_aside(), 2U) << "0 keeps all";
  recipes::prune_checkpoints(folder_, 3);
  EXPECT_EQ(num_aside(), 1U) << "two are complete";
  checkpoint(5);
  recipes::prune_checkpoints(folder_, 3);
  EXPECT_EQ(num_aside(), 0U);
  EXPECT_EQ(steps(), (std::vector<int64_t>{2, 4, 5}));
}

// On a full disk nobody loses a good one for one that nobody can go on from, nor what is his own.
TEST_F(CheckpointsTest, UselessOnesMakeRoomFirst) {
  for (int64_t step : {1, 2, 3})
    checkpoint(step);
  recipes::set_aside(folder_, 3);
  const std::vector<std::filesystem::path> left{folder_ / "checkpoint-7.tmp-99-ab"};
  put(left[0] / "config.json", "{}");
  put(folder_ / "checkpoint-1.mine" / "config.json", "{}");
  EXPECT_EQ(recipes::drop_useless(folder_, false), left);
  EXPECT_EQ(recipes::drop_useless(folder_, true),
            std::vector<std::filesystem::path>{folder_ / "checkpoint-3.damaged"});
  EXPECT_TRUE(recipes::drop_useless(folder_, true).empty());
  EXPECT_TRUE(recipes::drop_useless(folder_ / "none", true).empty());
  recipes::prune_checkpoints(folder_, 1);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "checkpoint-1.mine"));
  EXPECT_EQ(steps(), (std::vector<int64_t>{2}));
}

TEST_F(CheckpointsTest, FinalPointsAtTheLastAndMovesWithTheFolder) {
  checkpoint(5);
  checkpoint(7);
  recipes::link_final(folder_, 5);
  recipes::link_final(folder_, 7);
  EXPECT_EQ(std::filesystem::read_symlink(folder_ / "final"), "checkpoint-7");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "final" / "config.json"));
}

}  // namespace
}  // namespace retort::test
