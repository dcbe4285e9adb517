// Ranks that see other checkpoints than the first one: one state for all of them, or none.
#include "recipes/run/checkpoints/resume_point.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/file.h"
#include "models/safetensors/file_checksums.h"
#include "recipes/run/checkpoints/checkpoint_folder.h"
#include "tests/recipes/loop/rank_threads.h"
#include "tests/support/folder_fixture.h"

namespace retort::recipes {
namespace {

namespace fs = std::filesystem;

class ResumePoint : public test::FolderTest {
 protected:
  // What a rank sees of the run: as all hosts do, but for some that are not there yet.
  void save(const std::string& run, int64_t step, const std::string& loop = "") const {
    const fs::path path = checkpoint_path(folder_ / run, step);
    put(path / "config.json", "{}");
    put(path / "state/loop.json", "{\"step\": " + std::to_string(step) + loop + "}");
    mark_complete(path);
  }
  // Where each rank goes on; rank 1 sees the run `other`.
  struct Agreed {
    std::vector<fs::path> checkpoints;
    std::vector<std::optional<Error>> errors;
    std::vector<std::string> warnings;
  };
  Agreed agree(const std::string& other, Duration patience = Duration(300)) const {
    Agreed agreed{.checkpoints = std::vector<fs::path>(3), .errors = {}, .warnings = {}};
    agreed.errors = test::run_rank_threads(3, [&](parallel::World& world) {
      const auto rank = static_cast<size_t>(world.rank());
      agreed.checkpoints[rank] = agree_on_checkpoint(
          world, folder_ / (rank == 1 ? other : "run"), patience,
          [&](int64_t, const std::string& what) { agreed.warnings.push_back(what); });
    });
    return agreed;
  }
  static void expect_all(const Agreed& agreed, ErrorCode code, const std::string& part) {
    for (const std::optional<Error>& error : agreed.errors) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code(), code) << error->what();
      EXPECT_NE(error->message().find(part), std::string::npos) << error->message();
    }
  }
};

TEST_F(ResumePoint, IsTheNewestThatTheFirstRankSees) {
  EXPECT_EQ(agree("run").checkpoints, std::vector<fs::path>(3)) << "there is none";
  for (const int64_t step : {3, 6})
    save("run", step);
  EXPECT_EQ(agree("run").checkpoints, std::vector<fs::path>(3, folder_ / "run/checkpoint-6"));

  // Who sees a newer one goes on with the others.
  for (const int64_t step : {3, 6, 9})
    save("newer", step);
  EXPECT_EQ(agree("newer").checkpoints[1], folder_ / "newer/checkpoint-6");
}

TEST_F(ResumePoint, IsWaitedForUntilItShows) {
  for (const int64_t step : {3, 6, 9})
    save("run", step);
  save("late", 3);
  expect_all(agree("late"), ErrorCode::kMismatch,
             "student/0 goes on from checkpoint-9, which after 300ms in " +
                 (folder_ / "late").string() +
                 " as this rank sees it is not there; the newest one there is checkpoint-3");
  // Another run's, of the same step.
  save("late", 9, ", \"other\": 1");
  expect_all(agree("late"), ErrorCode::kMismatch, "as this rank sees it is another one");

  fs::remove_all(folder_ / "late/checkpoint-9");
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    fs::copy(folder_ / "run/checkpoint-9", folder_ / "late/coming", fs::copy_options::recursive);
    fs::rename(folder_ / "late/coming", folder_ / "late/checkpoint-9");
  });
  const Agreed agreed = agree("late", std::chrono::seconds(20));
  host.join();
  for (const auto& error : agreed.errors)
    EXPECT_FALSE(error) << error->what();
  EXPECT_EQ(agreed.checkpoints[1], folder_ / "late/checkpoint-9");
}

TEST_F(ResumePoint, ThatIsDamagedNamesTheOneBefore) {
  for (const int64_t step : {3, 6, 9})
    save("run", step);
  put(folder_ / "run/checkpoint-9/config.json", "{ ");
  const fs::path file = folder_ / "run/checkpoint-9/config.json";
  expect_all(agree("run"), ErrorCode::kCorrupt, file.string() + " is not what was saved");
  expect_all(agree("run"), ErrorCode::kCorrupt, "go on from checkpoint-6 before it");

  // What somebody changed on purpose is told, and what cannot be read is no damage.
  put(file, "{\"of\": \"a person\"}");
  const Agreed changed = agree("run");
  EXPECT_EQ(changed.checkpoints, std::vector<fs::path>(3, folder_ / "run/checkpoint-9"));
  ASSERT_EQ(changed.warnings.size(), 1U);
  EXPECT_NE(changed.warnings[0].find(file.string()), std::string::npos) << changed.warnings[0];
  const fs::path loop = folder_ / "run/checkpoint-9/state/loop.json";
  fs::rename(loop, loop.string() + ".kept");
  fs::create_symlink("loop.json", loop);
  expect_all(agree("run"), ErrorCode::kUnavailable, loop.string());

  // Set aside it is told, and the one before is taken.
  set_aside(folder_ / "run", 9);
  const Agreed agreed = agree("run");
  EXPECT_EQ(agreed.checkpoints, std::vector<fs::path>(3, folder_ / "run/checkpoint-6"));
  ASSERT_EQ(agreed.warnings.size(), 1U);
  EXPECT_TRUE(agreed.warnings[0].starts_with("checkpoint-9 is damaged, and is now "))
      << agreed.warnings[0];
  EXPECT_TRUE(agreed.warnings[0].ends_with("; the run goes on from checkpoint-6"));
}

}  // namespace
}  // namespace retort::recipes
