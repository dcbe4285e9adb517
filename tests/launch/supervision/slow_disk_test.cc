// Disks that are full or do not answer: the launcher's own thread goes on, and its files say so.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "launch/status/metrics_follower.h"
#include "launch/status/status_file.h"
#include "launch/writers/disk_thread.h"
#include "launch/writers/log_writer.h"
#include "launch/writers/reserved_file.h"
#include "tests/launch/supervision/process_spec.h"
#include "tests/support/caching_mount.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

using launch::DiskThread;
using launch::LoggedStep;
using launch::LogWriter;
using launch::MetricsFollower;
using launch::ReservedFile;
using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline soon() { return Deadline::after(seconds(60)); }

// What a job waits for that hangs until the test opens it.
class Gate {
 public:
  void open() { promise_.set_value(); }
  std::function<void()> job() const {
    return [opened = opened_] { opened.wait(); };
  }

 private:
  std::promise<void> promise_;
  const std::shared_future<void> opened_ = promise_.get_future().share();
};

TEST(DiskThreadTest, AJobThatHangsHoldsNobody) {
  Gate first, second;
  std::atomic<int> done{0};
  {
    DiskThread thread;
    thread.start(first.job());
    EXPECT_FALSE(thread.idle());
    EXPECT_FALSE(thread.wait_a_while(milliseconds(1)));
    EXPECT_FALSE(thread.wait_a_while(seconds(3600))) << "it is not waited for again";
    first.open();
    EXPECT_TRUE(thread.wait(soon()));
    EXPECT_TRUE(thread.wait_a_while(milliseconds(0)));

    thread.start([&done] { ++done; });
    EXPECT_TRUE(thread.wait_a_while(seconds(60)));
    EXPECT_EQ(done, 1);
    thread.start(second.job());
  }  // does not wait for the second one
  second.open();
}

TEST(MetricsFollowerTest, RowsComeWhenTheFileSystemAnswers) {
  Gate gate;
  std::atomic<int64_t> calls{0};
  MetricsFollower follower(
      [&calls, wait = gate.job()] {
        const int64_t call = ++calls;
        if (call == 1) wait();
        return std::vector<LoggedStep>{{.step = call, .values = {}}};
      },
      milliseconds(1));
  EXPECT_TRUE(follower.poll().empty());
  ASSERT_TRUE(wait_until([&] { return calls == 1; })) << "the look begins on a thread of its own";
  EXPECT_TRUE(follower.poll().empty());
  EXPECT_EQ(calls, 1) << "one look at a time";
  gate.open();
  std::vector<int64_t> steps;
  EXPECT_TRUE(wait_until([&] {
    for (const LoggedStep& row : follower.poll())
      steps.push_back(row.step);
    return steps.size() >= 3;
  }));
  EXPECT_EQ(steps[0], 1);
  EXPECT_EQ(steps[1], 2);
  EXPECT_EQ(steps[2], 3);
}

using SlowDisk = FolderTest;

// A FIFO that nobody reads is a file whose open(2) hangs.
TEST_F(SlowDisk, ALogThatCannotBeOpenedHoldsNobody) {
  const auto fifo = folder_ / "student-0.log";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  LogWriter logs(/*capacity=*/10);
  logs.append(fifo, "one ");  // the thread's, which hangs with it
  logs.append(fifo, "two ");
  logs.append(fifo, "three ");  // still fits
  logs.append(fifo, "four ");
  logs.append(fifo, "5");  // nothing follows what was left out
  logs.drain(milliseconds(1));

  const int fd = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fd, 0);
  std::string text;
  EXPECT_TRUE(wait_until([&] {
    logs.work();
    char bytes[256];
    const ssize_t got = ::read(fd, bytes, sizeof bytes);
    if (got > 0) text.append(bytes, static_cast<size_t>(got));
    return text.find("answer]") != std::string::npos;
  }));
  ::close(fd);
  EXPECT_EQ(text, "one two three \n[6 bytes were left out: the file system did not answer]\n");
}

// Full it is no more once the thread is idle, though it has not been given yet what waits.
TEST_F(SlowDisk, LogsTakeMoreOnceTheThreadIsIdle) {
  const auto fifo = folder_ / "student-0.log";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  LogWriter logs(/*capacity=*/10);
  logs.append(fifo, "line ");  // the thread's, which waits for a reader
  logs.append(fifo, "line ");
  logs.append(fifo, "line ");
  EXPECT_TRUE(logs.full());

  const int fd = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(wait_until([&] { return !logs.full(); }));
  logs.append(fifo, "line ");
  logs.drain(seconds(60));
  char bytes[256];
  const ssize_t got = ::read(fd, bytes, sizeof bytes);
  ::close(fd);
  EXPECT_EQ(std::string(bytes, static_cast<size_t>(std::max<ssize_t>(got, 0))),
            "line line line line ");
}

// Whoever makes the writers wait while it is full loses nothing to a slow disk; one that does not
// answer at all is not waited for.
TEST_F(SlowDisk, LogsAreFullWhileWhatWaitsIsWritten) {
  const auto fifo = folder_ / "student-0.log";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  LogWriter logs(/*capacity=*/10);
  const int fd = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fd, 0);
  EXPECT_FALSE(logs.full());
  std::string all, text;
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(wait_until([&] {
      logs.work();
      return !logs.full();
    }));
    logs.append(fifo, "line ");
    all += "line ";
  }
  logs.drain(seconds(60));
  EXPECT_FALSE(logs.full());
  char bytes[4096];
  for (ssize_t got = 0; (got = ::read(fd, bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<size_t>(got));
  ::close(fd);
  EXPECT_EQ(text, all);

  const auto hanging = folder_ / "student-1.log";
  ASSERT_EQ(::mkfifo(hanging.c_str(), 0600), 0);
  logs.append(hanging, "1");  // the thread's
  logs.append(hanging, "12345");
  EXPECT_FALSE(logs.full()) << "half";
  logs.append(hanging, "6");
  EXPECT_TRUE(wait_until([&] { return !logs.full(); })) << "it does not answer";
  ::close(::open(hanging.c_str(), O_RDONLY | O_NONBLOCK));  // its thread goes on
}

// A launcher of many hosts must go on answering their heartbeats.
TEST(LogPatienceTest, OneThreadWaitsASecondInAllAndLittleLater) {
  launch::LogPatience patience;
  const auto start = launch::LogPatience::Clock::now();
  EXPECT_EQ(patience.left(start), seconds(1));
  patience.spend(milliseconds(700));
  EXPECT_EQ(patience.left(start), milliseconds(300));
  patience.spend(milliseconds(300));
  EXPECT_EQ(patience.left(start), milliseconds(0));
  EXPECT_EQ(patience.left(start + seconds(2)), milliseconds(200));
  EXPECT_EQ(patience.left(start + seconds(3600)), seconds(1));

  patience.spend(seconds(3));  // of one that was cut short late
  EXPECT_EQ(patience.left(start + seconds(3600)), milliseconds(0)) << "never below nothing";
}

TEST_F(SlowDisk, LogsAreAppendedInOrder) {
  put(folder_ / "a.log", "before\n");
  {
    LogWriter logs;
    for (int i = 0; i < 100; ++i) {
      logs.append(folder_ / "a.log", std::to_string(i) + " ");
      logs.append(folder_ / "b.log", "b");
    }
    logs.append(folder_ / "missing/c.log", "a warning, and no more");
  }
  std::string expected = "before\n";
  for (int i = 0; i < 100; ++i)
    expected += std::to_string(i) + " ";
  EXPECT_EQ(get(folder_ / "a.log"), expected);
  EXPECT_EQ(get(folder_ / "b.log"), std::string(100, 'b'));
}

// A small file system of its own on `folder`. False: this process may not mount one.
bool mount_small_disk(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m") == 0;
}

void fill_disk(const std::filesystem::path& folder) {
  const int fd =
      ::open((folder / "filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string page(4096, 'x');
  while (::write(fd, page.data(), page.size()) > 0) {
  }
  ::close(fd);
}

TEST_F(SlowDisk, AReservedFileIsReplacedOnAFullDisk) {
  const auto disk = folder_ / "disk", path = disk / "status.json";
  if (!mount_small_disk(disk)) GTEST_SKIP() << "mounts need root";
  ReservedFile file(path);
  file.replace("first");
  for (const size_t size : {20'000u, 10u, 30'000u, 4'000u, 60'000u}) {
    fill_disk(disk);
    EXPECT_EQ(error_of([&] { replace_file(disk / "other", "x"); }).code(),
              ErrorCode::kResourceExhausted);
    const std::string content(size, static_cast<char>('a' + size % 7));
    file.replace(content);
    EXPECT_EQ(get(path), content);
  }
  fill_disk(disk);
  EXPECT_EQ(error_of([&] { file.replace(std::string(200'000, 'x')); }).code(),
            ErrorCode::kResourceExhausted)
      << "more than is kept";

  // With room it is an ordinary file again, and more room is kept for a larger one.
  std::filesystem::remove(disk / "filler");
  file.replace(std::string(50'000, 'y'));
  fill_disk(disk);
  file.replace(std::string(200'000, 'z'));
  EXPECT_EQ(get(path), std::string(200'000, 'z'));
  file.release();
  for (const char* spare : {".spare", ".spare2"})
    EXPECT_FALSE(std::filesystem::exists(path.string() + spare)) << spare;
  ::umount2(disk.c_str(), MNT_DETACH);
}

// status.json does not keep saying that a run goes on which has ended.
TEST_F(SlowDisk, TheStatusOfARunOnAFullDiskSaysItsEnd) {
  const auto disk = folder_ / "disk", path = disk / launch::kStatusFile;
  if (!mount_small_disk(disk)) GTEST_SKIP() << "mounts need root";
  std::optional<launch::StatusFile> status(
      std::in_place, launch::StatusFile::Options{.path = path, .patience = seconds(60)});
  fill_disk(disk);
  const launch::ProcessSpec spec = process_spec("student", 0);
  status->on_start(spec, 18);
  status->on_status(
      spec, {.state = "training", .step = 7, .message = "disk full: 2 rows wait", .warning = true});
  status->on_tick();
  const auto written = launch::read_run_status(disk);
  EXPECT_NE(written.warning.find("disk full: 2 rows wait"), std::string::npos) << written.warning;
  EXPECT_FALSE(written.ended());
  status->finish({.exit_code = 3});
  EXPECT_EQ(launch::read_run_status(disk).state, launch::RunState::kFailed);
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".spare"));
  status.reset();
  ::umount2(disk.c_str(), MNT_DETACH);
}

TEST_F(SlowDisk, AStatusThatCannotBeWrittenHoldsNobody) {
  if (!CachingMount::available()) GTEST_SKIP() << "needs root and /dev/fuse";
  std::filesystem::create_directories(folder_ / "disk");
  const CachingMount mount(folder_ / "disk", folder_ / "mount");
  launch::StatusFile status({.path = mount.path() / launch::kStatusFile,
                             .patience = milliseconds(50),
                             .last_wait = seconds(60)});
  const launch::ProcessSpec spec = process_spec("student", 0);
  status.on_start(spec, 18);
  mount.stall();
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 1; step <= 50; ++step) {
    status.on_status(spec, {.state = step % 2 == 0 ? "training" : "saving", .step = step});
    status.on_tick();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(20)) << "it waits at each tick";
  mount.resume();
  status.finish({.exit_code = 0});
  const auto written = launch::read_run_status(folder_ / "disk");
  EXPECT_EQ(written.state, launch::RunState::kDone);
  EXPECT_EQ(written.processes.at(0).step, 50) << "the newest state wins";
}

}  // namespace
}  // namespace retort::test
