// A full disk under metrics.jsonl, TensorBoard's events and samples: rows wait, and all arrive
// whole and in order.
#include "recipes/run/metrics/patient_files.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "recipes/run/rank/rank_context.h"
#include "recipes/run/student/told_metrics.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

// No file may grow beyond so many bytes, which fails as a full disk does; the disk has room again
// when it is lifted.
class FullDiskLimit {
 public:
  explicit FullDiskLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit now{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDiskLimit() { ::setrlimit(RLIMIT_FSIZE, &old_); }

 private:
  rlimit old_{};
};

class PatientFilesTest : public test::FolderTest {
 protected:
  const std::filesystem::path file_ = folder_ / "rows";
};

TEST_F(PatientFilesTest, RecordsWaitAndArriveInOrder) {
  PatientFile file(file_);
  file.append("one\n");
  {
    // There is room for half of the next one.
    const FullDiskLimit limit(6);
    for (const char* record : {"two\n", "three\n", "x\n"})
      file.append(record);
    EXPECT_EQ(file.num_waiting(), 3) << "nothing overtakes what waits";
    EXPECT_EQ(get(file_), "one\n") << "no half of a record stays";
    EXPECT_FALSE(file.flush());
  }
  file.append("four\n");
  EXPECT_EQ(file.num_waiting(), 0);
  EXPECT_EQ(get(file_), "one\ntwo\nthree\nx\nfour\n");
}

TEST_F(PatientFilesTest, TheLastChanceIsTheEnd) {
  {
    PatientFile file(file_);
    const FullDiskLimit limit(0);
    file.append("one\n");
  }  // the limit ends first
  EXPECT_EQ(get(file_), "one\n");
  {
    const FullDiskLimit limit(4);
    PatientFile file(file_);
    file.append("lost\n");
  }
  EXPECT_EQ(get(file_), "one\n");
}

TEST_F(PatientFilesTest, WhatWaitsIsBounded) {
  PatientFile file(file_, /*max_waiting=*/10);
  const FullDiskLimit limit(0);
  file.append("12345");
  file.append("67890");
  const Error error = test::error_of([&] { file.append("1"); });
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  for (const char* part : {"rows", "11 bytes wait", "at most 10"})
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();

  PatientFiles files(/*max_waiting=*/10);
  files.write(folder_ / "a", "1234567890");
  EXPECT_EQ(test::error_of([&] { files.write(folder_ / "b", "1"); }).code(),
            ErrorCode::kResourceExhausted);
}

TEST_F(PatientFilesTest, WholeFilesWaitToo) {
  PatientFiles files;
  {
    const FullDiskLimit limit(3);
    files.write(folder_ / "samples/1", "too long");
    files.write(folder_ / "samples/2", "x");
    EXPECT_EQ(files.num_waiting(), 2);
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "samples")) << "not even temporary files";
  }
  EXPECT_TRUE(files.flush());
  EXPECT_EQ(get(folder_ / "samples/1"), "too long");
  EXPECT_EQ(get(folder_ / "samples/2"), "x");

  // Only a full disk is waited for.
  put(folder_ / "file", "");
  EXPECT_EQ(test::error_of([&] { files.write(folder_ / "file/3", "x"); }).code(),
            ErrorCode::kUnavailable);
}

// The bytes of a run whose disk never was full, and what is told meanwhile.
TEST_F(PatientFilesTest, MetricsArriveAndAreToldOf) {
  std::vector<std::string> told;
  RankContext context{.run_folder = folder_ / "run"};
  context.warn = [&](const std::string&, int64_t, const std::string& what) {
    told.push_back(what);
  };
  const auto row = [](int64_t step) {
    return MetricsRow{.step = step, .values = {}}.add("loss", 0.5);
  };
  std::string expected;
  {
    ToldMetrics metrics(context);
    for (int64_t step = 1; step <= 2; ++step)
      metrics.write(row(step));
    {
      const FullDiskLimit limit(30);
      for (int64_t step = 3; step <= 5; ++step)
        metrics.write(row(step));
    }
    ASSERT_EQ(told.size(), 3u);
    EXPECT_EQ(told[2].find("disk full: 3 rows wait"), 0u) << told[2];
    metrics.flush(5);
    ASSERT_EQ(told.size(), 4u);
    EXPECT_NE(told[3].find("room again"), std::string::npos) << told[3];
    metrics.flush(5);
    EXPECT_EQ(told.size(), 4u) << "once";
  }
  for (int64_t step = 1; step <= 5; ++step)
    expected += "{\"step\": " + std::to_string(step) + ", \"loss\": 0.5}\n";
  EXPECT_EQ(get(context.run_folder / "metrics.jsonl"), expected);

  // Of TensorBoard's file nothing is dropped as damaged: all five events are in it.
  std::filesystem::path events;
  for (const auto& entry : std::filesystem::directory_iterator(context.run_folder / "tensorboard"))
    events = entry.path();
  const std::string before = get(events);
  cut_back_events(events.parent_path(), 5);
  EXPECT_EQ(get(events), before);
  cut_back_events(events.parent_path(), 4);
  EXPECT_LT(get(events).size(), before.size()) << "the last one is of step 5";
}

}  // namespace
}  // namespace retort::recipes
