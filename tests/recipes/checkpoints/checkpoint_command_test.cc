// The user's program for checkpoints: scripts that write down what they are given.
#include "recipes/run/checkpoints/checkpoint_command.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/file.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::recipes {
namespace {

using namespace std::chrono_literals;

class CheckpointCommandTest : public test::FolderTest {
 protected:
  // A shell script; the checkpoint is its $1 and `folder_` its $FOLDER.
  CheckpointCommand::Options script(const std::string& text, Duration timeout = 60s) const {
    return {.argv = {"sh", "-c", "FOLDER=" + folder_.string() + "; " + text, "script"},
            .timeout = timeout};
  }
  std::filesystem::path checkpoint(int64_t step) const {
    return folder_ / ("checkpoint-" + std::to_string(step));
  }
  std::string given() const {
    return std::filesystem::exists(folder_ / "given") ? get(folder_ / "given") : "";
  }
  bool was_given(const std::string& names) const {
    return test::wait_until([&] { return given() == names; }, 30s);
  }
};

constexpr const char* kWriteDown = "basename $1 >> $FOLDER/given; ";

TEST_F(CheckpointCommandTest, GetsEachCheckpointOnce) {
  CheckpointCommand command(script(kWriteDown));
  command.give(checkpoint(1));
  EXPECT_TRUE(was_given("checkpoint-1\n"));
  command.finish();
  command.give(checkpoint(2));
  command.finish();
  EXPECT_EQ(given(), "checkpoint-1\ncheckpoint-2\n");
  EXPECT_TRUE(command.in_use().empty());
  EXPECT_TRUE(command.take_messages().empty());
}

TEST_F(CheckpointCommandTest, FailuresAreToldAndTheNextCheckpointIsGiven) {
  CheckpointCommand command(script(std::string(kWriteDown) + "echo no room; exit 3"));
  for (const int64_t step : {1, 2}) {
    command.give(checkpoint(step));
    command.finish();
    const std::vector<std::string> told = command.take_messages();
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0], "train.checkpoint_command ('sh') for " + checkpoint(step).string() +
                           " failed: it exited with code 3; the last it printed:\nno room");
  }
}

TEST_F(CheckpointCommandTest, OneThatDoesNotEndIsKilled) {
  CheckpointCommand command(script("sleep 60", 200ms));
  command.give(checkpoint(1));
  command.finish();
  const std::vector<std::string> told = command.take_messages();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("killed after 200ms"), std::string::npos) << told[0];
}

// A slow program gets the newest checkpoint next; what it has and will get stays.
TEST_F(CheckpointCommandTest, ASlowOneIsGivenTheNewest) {
  CheckpointCommand command(
      script(std::string(kWriteDown) + "while [ ! -e $FOLDER/go ]; do sleep 0.02; done"));
  command.give(checkpoint(1));
  ASSERT_TRUE(was_given("checkpoint-1\n"));
  command.give(checkpoint(2));
  command.give(checkpoint(3));
  EXPECT_EQ(command.in_use(), (std::vector<std::filesystem::path>{checkpoint(3), checkpoint(1)}));
  const std::vector<std::string> told = command.take_messages();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("checkpoint-2 was passed over"), std::string::npos) << told[0];

  put(folder_ / "go", "");
  command.finish();
  EXPECT_EQ(given(), "checkpoint-1\ncheckpoint-3\n");
}

TEST_F(CheckpointCommandTest, ARunThatFailsDoesNotWaitForIt) {
  const auto begin = std::chrono::steady_clock::now();
  {
    CheckpointCommand command(script(std::string(kWriteDown) + "sleep 60"));
    command.give(checkpoint(1));
    ASSERT_TRUE(was_given("checkpoint-1\n"));
    command.give(checkpoint(2));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  EXPECT_EQ(given(), "checkpoint-1\n");
}

TEST_F(CheckpointCommandTest, OneThatIsNotThereIsRefusedAtTheStart) {
  test::expect_refused("there is no program 'no-such-program-of-retort'", [] {
    CheckpointCommand command({.argv = {"no-such-program-of-retort", "-v"}});
  });
}

}  // namespace
}  // namespace retort::recipes
