#include "base/write_turn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort {
namespace {
namespace fs = std::filesystem;

class WriteTurns : public test::FolderTest {
 protected:
  const fs::path file_ = folder_ / "a.safetensors";
};

TEST_F(WriteTurns, HaveOneOwnerAtATime) {
  std::atomic<int> inside{0}, taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int mine = 0; mine < 50;) {
        const auto turn = WriteTurn::try_take(file_);
        if (!turn) {
          std::this_thread::yield();
          continue;
        }
        EXPECT_EQ(inside.fetch_add(1), 0);
        ++mine;
        taken.fetch_add(1);
        EXPECT_EQ(inside.fetch_sub(1), 1);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(taken, 200);
  EXPECT_TRUE(fs::is_empty(folder_)) << "the last one gave it back";
}

TEST_F(WriteTurns, MoveAndEndWithTheirOwner) {
  {
    auto turn = WriteTurn::try_take(file_);
    ASSERT_TRUE(turn);
    const WriteTurn moved(std::move(*turn));
    turn.reset();
    EXPECT_FALSE(WriteTurn::try_take(file_)) << "the moved one has it";
  }
  EXPECT_TRUE(WriteTurn::try_take(file_));
  const Error error =
      test::error_of([&] { static_cast<void>(WriteTurn::try_take(folder_ / "none" / "a")); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("none/a.turn"), std::string::npos) << error.message();
}

TEST_F(WriteTurns, AreWatchedForSignsOfLife) {
  const auto turn = WriteTurn::try_take(file_);
  TurnWatch patient(Duration(3'600'000)), impatient(Duration(0));
  impatient.see(folder_ / "free");  // nobody's
  impatient.see(file_);             // the first sign
  patient.see(file_);
  patient.see(file_);
  EXPECT_EQ(test::error_of([&] { impatient.see(file_); }).code(), ErrorCode::kUnavailable);

  // Another time of the turn's file is a sign, whatever the clocks say.
  fs::last_write_time(file_.string() + ".turn",
                      fs::file_time_type::clock::now() - std::chrono::hours(9));
  impatient.see(file_);
  turn->beat();
  impatient.see(file_);
}

// Its file may be gone once it is opened: another host has removed it. This one can be opened, too,
// and not read.
TEST_F(WriteTurns, ATurnThatCannotBeReadIsWatchedAllTheSame) {
  fs::create_symlink("/proc/self/mem", file_.string() + ".turn");
  TurnWatch watch(Duration(60'000));
  watch.see(file_);
  watch.see(file_);
}

TEST_F(WriteTurns, PageCachesOfOneFolderAreOne) {
  fs::create_directory(folder_ / "b");
  EXPECT_EQ(page_cache_of(folder_), page_cache_of(folder_ / "b"));
  EXPECT_NE(page_cache_of(folder_), page_cache_of("/proc"));
  EXPECT_NE(kernel_of("/proc/sys/kernel/random/boot_id"), "");
  EXPECT_EQ(kernel_of(folder_ / "none"), kernel_of(folder_ / "none"));
  EXPECT_TRUE(kernel_of(folder_ / "none").starts_with("process ")) << "of nobody else's kernel";
  EXPECT_EQ(test::error_of([&] { page_cache_of(folder_ / "none"); }).code(),
            ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace retort
