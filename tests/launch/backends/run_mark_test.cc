// The mark of a run's folder where several want it: a launcher, hosts, and somebody who only looks.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "launch/run_folder/run_mark.h"
#include "launch/run_folder/run_mark_trial.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

namespace fs = std::filesystem;
using launch::RunMarkTrial;

class RunMarkFile : public FolderTest {
 protected:
  // How often this process has it open.
  int64_t times_open() const {
    int64_t count = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      if (fs::read_symlink(entry.path(), closed) == mark_) ++count;
    }
    return count;
  }

  const fs::path mark_ = folder_ / launch::kRunMark;
};

TEST_F(RunMarkFile, ALookLeavesNothing) {
  {
    const RunMarkTrial trial(folder_ / "a" / "run");
    EXPECT_FALSE(trial.error());
    EXPECT_EQ(launch::read_run_mark(folder_ / "a" / "run").text, trial.text());
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(RunMarkFile, WhatARunHasIsTakenAsItIs) {
  const std::string own = launch::make_run_mark(folder_, Duration(0));
  {
    const launch::RunMark host = launch::read_run_mark(folder_);
    const RunMarkTrial trial(folder_);
    ASSERT_TRUE(trial.error());
    EXPECT_NE(std::string(trial.error()->what()).find("still run on a host"), std::string::npos);
    EXPECT_EQ(trial.text(), own);
  }
  EXPECT_EQ(get(mark_), own);
}

TEST_F(RunMarkFile, ALaunchersMarkOutlivesALook) {
  std::string own;
  {
    const RunMarkTrial trial(folder_);
    own = launch::make_run_mark(folder_, Duration(0));
    EXPECT_NE(own, trial.text());
  }
  EXPECT_EQ(get(mark_), own);
}

// It has opened the file that is removed before it gets the lock: that one no host would find.
TEST_F(RunMarkFile, ALauncherThatWaitsForALookMakesAMarkThatHostsFind) {
  std::optional<RunMarkTrial> trial(std::in_place, folder_);
  std::optional<launch::RunMark> host = launch::read_run_mark(folder_);
  std::string own;
  std::jthread launcher([&] { own = launch::make_run_mark(folder_, Duration(60'000)); });
  ASSERT_TRUE(wait_until([&] { return times_open() == 2; }));
  trial.reset();
  EXPECT_FALSE(fs::exists(mark_));
  host.reset();
  launcher.join();
  EXPECT_EQ(get(mark_), own);
}

TEST_F(RunMarkFile, AFolderThatCannotBeMadeIsSaid) {
  const RunMarkTrial trial("/proc/none/run");
  ASSERT_TRUE(trial.error());
  EXPECT_EQ(trial.error()->code(), ErrorCode::kUnavailable);
  EXPECT_EQ(trial.text(), "");
}

}  // namespace
}  // namespace retort::test
