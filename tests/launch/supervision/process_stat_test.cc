#include "launch/process/process_stat.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace retort::launch {
namespace {

TEST(ProcessStat, HasParentAndGroup) {
  std::ifstream file("/proc/self/stat");
  const auto stat = read_process_stat(file);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->parent, ::getppid());
  EXPECT_EQ(stat->group, ::getpgrp());
}

TEST(ProcessStat, ANameMayHoldAnything) {
  std::istringstream file("17 (a) S 1 2) S 4 5 6 7");
  const auto stat = read_process_stat(file);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->parent, 4);
  EXPECT_EQ(stat->group, 5);
  std::istringstream cut("17 (a");
  EXPECT_FALSE(read_process_stat(cut));
}

// Once it threw, and the launcher ended with the run.
TEST(ProcessStat, OfAProcessThatEndedAfterItsFileWasOpenedIsNone) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::ifstream file("/proc/" + std::to_string(child) + "/stat");
  EXPECT_TRUE(file.is_open());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(read_process_stat(file));
}

}  // namespace
}  // namespace retort::launch
