// The user's program for metrics: scripts that write down the lines they get.
#include "launch/status/metrics_command.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>

#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::launch {
namespace {

using namespace std::chrono_literals;

class MetricsCommandTest : public test::FolderTest {
 protected:
  void start(const std::string& script) {
    command_.emplace(MetricsCommand::Options{
        .argv = {"sh", "-c", "FOLDER=" + folder_.string() + "; " + script},
        .metrics = metrics_,
        .output = folder_ / "logs/metrics_command.log",
        .tell = [this](const std::string& message) { told_.push_back(message); }});
  }
  void append(const std::string& text) const { std::ofstream(metrics_, std::ios::app) << text; }
  bool got(const std::string& text) const {
    return test::wait_until(
        [&] { return std::filesystem::exists(folder_ / "got") && get(folder_ / "got") == text; },
        30s);
  }
  bool is_told() {
    return test::wait_until(
        [&] {
          command_->on_tick();
          return !told_.empty();
        },
        30s);
  }

  const std::filesystem::path metrics_ = folder_ / "metrics.jsonl";
  std::vector<std::string> told_;
  std::optional<MetricsCommand> command_;
};

TEST_F(MetricsCommandTest, GetsEachNewLineAsItStands) {
  append("{\"step\":1}\n");
  start("cat > $FOLDER/got; echo the end");
  append("{\"step\":2}\n{\"step\":");
  EXPECT_TRUE(got("{\"step\":2}\n")) << "old lines and halves are not passed on";
  append("3}\n");
  EXPECT_TRUE(got("{\"step\":2}\n{\"step\":3}\n"));

  // What comes last is passed on before its stdin is closed.
  append("{\"step\":4}\n");
  command_->finish(30s);
  EXPECT_EQ(get(folder_ / "got"), "{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n");
  EXPECT_EQ(get(folder_ / "logs/metrics_command.log"), "the end\n");
  EXPECT_TRUE(told_.empty()) << told_.front();
}

TEST_F(MetricsCommandTest, ItsEndIsToldOnce) {
  start("read line; echo $line; exit 3");
  append("{\"step\":1}\n{\"step\":2}\n");
  ASSERT_TRUE(is_told());
  EXPECT_EQ(told_.front(),
            "launch.metrics_command ('sh') exited with code 3; the run goes on without it; what it "
            "printed is in " +
                (folder_ / "logs/metrics_command.log").string());
  append("{\"step\":3}\n");
  command_->finish(30s);
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_EQ(get(folder_ / "logs/metrics_command.log"), "{\"step\":1}\n");
}

TEST_F(MetricsCommandTest, OneThatReadsNothingHoldsUpNobody) {
  start("while :; do sleep 1; done");
  const std::string line = "{\"step\":1,\"text\":\"" + std::string(1000, 'x') + "\"}\n";
  for (int i = 0; i < 2000; ++i)  // more than a pipe holds
    append(line);
  const auto begin = std::chrono::steady_clock::now();
  command_->on_tick();
  command_->finish(300ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_.front().find("did not end in time"), std::string::npos) << told_.front();
}

// Slow is not lost: the file is the queue.
TEST_F(MetricsCommandTest, OneThatReadsSlowlyGetsEverything) {
  start("while read line; do sleep 0.001; echo $line >> $FOLDER/got; done");
  std::string all;
  for (int i = 0; i < 300; ++i)
    all += "{\"step\":" + std::to_string(i) + ",\"text\":\"" + std::string(500, 'x') + "\"}\n";
  append(all);
  command_->finish(60s);
  EXPECT_EQ(get(folder_ / "got"), all);
  EXPECT_TRUE(told_.empty());
}

TEST_F(MetricsCommandTest, AClosedStdinIsTold) {
  start("exec 0<&-; sleep 60");
  append("{\"step\":1}\n");
  ASSERT_TRUE(test::wait_until(
      [&] {
        append("{\"step\":2}\n");
        command_->on_tick();
        return !told_.empty();
      },
      30s));
  EXPECT_NE(told_.front().find("closed its stdin"), std::string::npos) << told_.front();
}

TEST_F(MetricsCommandTest, OneThatCannotBeStartedIsRefused) {
  test::expect_refused("launch.metrics_command: cannot start 'no-such-program-of-retort'", [&] {
    MetricsCommand command({.argv = {"no-such-program-of-retort"},
                            .metrics = metrics_,
                            .output = folder_ / "log",
                            .tell = {}});
  });
}

}  // namespace
}  // namespace retort::launch
