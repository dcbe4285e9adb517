#include "base/process/run_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/error.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;

class RunProgram : public testing::Test {
 protected:
  std::string shell(const std::string& text, Duration timeout = 30s) {
    return run_program({"sh", "-c", text}, timeout, give_up_);
  }
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

  std::atomic<bool> give_up_{false};
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

TEST_F(RunProgram, SaysHowItEnded) {
  EXPECT_EQ(shell("exit 0"), "");
  EXPECT_EQ(shell("exit 3"), "it exited with code 3");
  EXPECT_EQ(shell("kill -9 $$"), "it was killed by signal 9");
  EXPECT_EQ(shell("echo one; echo two >&2; exit 1"),
            "it exited with code 1; the last it printed:\none\ntwo");
  EXPECT_EQ(shell("read line || exit 0; exit 5"), "") << "its stdin is empty";
}

TEST_F(RunProgram, OneThatIsNotThereIsToldToo) {
  const std::string wrong = run_program({"no-such-program-of-retort"}, 1s, give_up_);
  EXPECT_NE(wrong.find("cannot start 'no-such-program-of-retort'"), std::string::npos) << wrong;
}

// Short of one descriptor more or less, in each place that needs one.
TEST_F(RunProgram, WithoutRoomForItTheInputIsNotBlamed) {
  const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                  std::filesystem::directory_iterator());
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::optional<ErrorCode> code = ErrorCode::kResourceExhausted;
  int refused = 0;
  for (; code; ++refused) {
    const rlimit few{static_cast<rlim_t>(open + refused), limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    try {
      run_to_end({"true"}, 30s, give_up_, 100);
      code.reset();
    } catch (const Error& error) {
      code = error.code();
    }
    ::setrlimit(RLIMIT_NOFILE, &limit);
    if (code) {
      ASSERT_EQ(*code, ErrorCode::kResourceExhausted) << refused;
    }
  }
  EXPECT_GT(refused, 6) << "more than its pipes";
}

// Threads whose stacks no machine has room for stand for a system that gives no thread.
TEST_F(RunProgram, WithoutAThreadForItTheInputIsNotBlamed) {
  pthread_attr_t usual, large;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ::pthread_attr_init(&large);
  ASSERT_EQ(::pthread_attr_setstacksize(&large, size_t{1} << 47), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&large), 0);
  const Error error = error_of([&] { run_to_end({"true"}, 30s, give_up_, 100); });
  ::pthread_setattr_default_np(&usual);
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted) << error.what();
  EXPECT_NE(error.message().find("cannot start 'true': Resource temporarily unavailable"),
            std::string::npos)
      << error.message();
  EXPECT_EQ(shell("exit 0"), "") << "with the usual stacks it starts";
}

// What it prints is read, so that it never waits for a full pipe, and only the end is kept.
TEST_F(RunProgram, MayPrintMoreThanAPipeHolds) {
  const std::string wrong =
      shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exit 2");
  EXPECT_TRUE(wrong.ends_with("line 19999")) << wrong;
  EXPECT_LT(wrong.size(), 2200u);
}

TEST_F(RunProgram, IsKilledWithWhatItStartedWhenItsTimeIsOver) {
  const std::string wrong = shell("echo begun; sleep 60 & sleep 60", 3s);
  EXPECT_EQ(wrong, "it was killed after 3s; the last it printed:\nbegun");
  EXPECT_LT(seconds(), 20);
}

TEST_F(RunProgram, EndsWhenItIsGivenUp) {
  std::thread other([&] {
    std::this_thread::sleep_for(200ms);
    give_up_ = true;
  });
  EXPECT_EQ(shell("sleep 60"), "it was killed, because the run ends");
  other.join();
  EXPECT_LT(seconds(), 20);
}

// Ports, connections and locks would outlive us in what it leaves behind, and keep the next process
// out. Not all libraries ask for O_CLOEXEC.
TEST_F(RunProgram, InheritsItsThreeStreamsAndNothingElse) {
  const int port = ::socket(AF_INET, SOCK_STREAM, 0);
  const int file = ::open("/dev/null", O_RDONLY);
  const int high = ::fcntl(file, F_DUPFD, 500);
  ASSERT_TRUE(port >= 3 && file >= 3 && high >= 500);
  // A shell keeps its script and the folder that it lists closed at exec, or opens them itself.
  for (const int fd : {port, file, high})
    EXPECT_EQ(shell("test ! -e /proc/$$/fd/" + std::to_string(fd)), "") << fd;
  EXPECT_EQ(shell("ls -l /proc/$$/fd | grep -E 'socket:|anon_inode:' && exit 1 || exit 0"), "");
  for (const int fd : {port, file, high})
    ::close(fd);
}

// A process that goes on in the background holds the pipes open, but nobody up.
TEST_F(RunProgram, DoesNotWaitForWhatItLeavesBehind) {
  EXPECT_EQ(shell("sleep 60 & exit 0"), "");
  EXPECT_LT(seconds(), 20);
}

}  // namespace
}  // namespace retort::test
