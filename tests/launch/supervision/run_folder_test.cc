#include "launch/run_folder/run_folder.h"

#include <sys/resource.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "launch/run_folder/driving_lock.h"
#include "launch/run_folder/launcher_address.h"
#include "launch/run_folder/run_mark.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

namespace fs = std::filesystem;
using launch::RunFolder;
using launch::RunFolderMode;

class RunFolderTest : public FolderTest {
 protected:
  RunFolderTest() : run_(folder_ / "deep" / "run") {}

  ErrorCode error_of(RunFolderMode mode, Duration timeout = Duration(50)) const {
    const Error error = test::error_of([&] { RunFolder folder(run_, mode, timeout); });
    message_ = error.message();
    return error.code();
  }
  // A run that stopped at step 2 and logged up to 3.
  void stopped_run() {
    put(run_ / "recipe.resolved.yaml", "recipe: sft\n");
    put(run_ / "metrics.jsonl", "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n");
    put(run_ / "checkpoint-2" / "config.json", "{}");
    put(run_ / "checkpoint-2" / "state" / "COMPLETE", "x");
    put(run_ / "logs" / "student-0.log", "x");
    put(run_ / launch::kDrivingLock, "");
  }

  fs::path run_;
  mutable std::string message_;
};

TEST_F(RunFolderTest, FreshMakesTheFolder) {
  const RunFolder folder(run_, RunFolderMode::kFresh);
  EXPECT_TRUE(fs::is_directory(run_));
  folder.write_resolved_recipe("recipe: sft\n");
  EXPECT_EQ(get(run_ / "recipe.resolved.yaml"), "recipe: sft\n");
  EXPECT_FALSE(folder.resume_from());
}

TEST_F(RunFolderTest, FreshRefusesWhatIsThere) {
  fs::create_directories(run_);
  { RunFolder folder(run_, RunFolderMode::kFresh); }
  { RunFolder folder(run_, RunFolderMode::kFresh); }  // the lock file alone does not count
  put(run_ / "notes.txt", "mine");
  EXPECT_EQ(error_of(RunFolderMode::kFresh), ErrorCode::kInvalidArgument);
  EXPECT_NE(message_.find("--resume"), std::string::npos) << message_;
  EXPECT_NE(message_.find("notes.txt"), std::string::npos) << message_;
  fs::remove_all(run_);
  put(run_, "a file");
  EXPECT_EQ(error_of(RunFolderMode::kFresh), ErrorCode::kInvalidArgument);
}

// Both find it empty, and one waits for the lock of the other.
TEST_F(RunFolderTest, OfTwoFreshRunsAtOnceOneIsRefused) {
  auto first = std::make_unique<RunFolder>(run_, RunFolderMode::kFresh);
  const auto locks = [this] {
    int64_t found = 0;
    std::error_code gone;
    for (const auto& fd : fs::directory_iterator("/proc/self/fd"))
      found += fs::read_symlink(fd.path(), gone) == run_ / ".lock" ? 1 : 0;
    return found;
  };
  ErrorCode second{};
  std::thread waits([&] { second = error_of(RunFolderMode::kFresh, Duration(60'000)); });
  ASSERT_TRUE(wait_until([&] { return locks() == 2; })) << "the other one waits";
  first->write_resolved_recipe("recipe: sft\n");
  first.reset();
  waits.join();
  EXPECT_EQ(second, ErrorCode::kInvalidArgument) << message_;
  EXPECT_NE(message_.find("is not empty (recipe.resolved.yaml"), std::string::npos) << message_;
  EXPECT_EQ(get(run_ / "recipe.resolved.yaml"), "recipe: sft\n");
}

// Names of files are bytes, but what a role is told is JSON.
TEST_F(RunFolderTest, APathThatIsNoUtf8IsRefusedBeforeItIsMade) {
  run_ = folder_ / "run\xff";
  for (const auto mode : {RunFolderMode::kFresh, RunFolderMode::kOverwrite})
    EXPECT_EQ(error_of(mode), ErrorCode::kInvalidArgument);
  EXPECT_NE(message_.find("run\\xff has bytes that are no UTF-8"), std::string::npos) << message_;
  EXPECT_FALSE(fs::exists(run_));
}

TEST_F(RunFolderTest, ResumeContinuesAtTheCheckpoint) {
  stopped_run();
  const RunFolder folder(run_, RunFolderMode::kResume);
  ASSERT_TRUE(folder.resume_from());
  EXPECT_EQ(folder.resume_from()->step, 2);
  EXPECT_EQ(get(run_ / "metrics.jsonl"), "{\"step\": 1}\n{\"step\": 2}\n");
  EXPECT_EQ(get(run_ / "metrics.jsonl.1"), "{\"step\": 3}\n");
}

TEST_F(RunFolderTest, AResumeThatIsRefusedChangesNothing) {
  stopped_run();
  const std::string metrics = get(run_ / "metrics.jsonl");
  std::optional<std::string> seen;
  const Error error = test::error_of([&] {
    RunFolder(run_, RunFolderMode::kResume, Duration(100),
              [&](const std::optional<std::string>& before) {
                seen = before;
                throw Error(ErrorCode::kMismatch, "another recipe");
              });
  });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_EQ(seen, get(run_ / "recipe.resolved.yaml"));
  EXPECT_EQ(get(run_ / "metrics.jsonl"), metrics);
  EXPECT_FALSE(fs::exists(run_ / "metrics.jsonl.1"));
}

TEST_F(RunFolderTest, ResumeWithoutACheckpointBeginsAgain) {
  stopped_run();
  fs::remove(run_ / "checkpoint-2" / "state" / "COMPLETE");
  const std::string evaluated = "{\"step\": 0}\n";  // train.eval_on_start
  put(run_ / "metrics.jsonl", evaluated + get(run_ / "metrics.jsonl"));
  const RunFolder folder(run_, RunFolderMode::kResume);
  EXPECT_FALSE(folder.resume_from());
  EXPECT_EQ(get(run_ / "metrics.jsonl"), "");
}

// Of a start that changed nothing but its recipe: what the checkpoint is of stands there again.
TEST_F(RunFolderTest, TheRecipeBeforeComesBackWithItsValues) {
  stopped_run();
  const fs::path recipe = run_ / launch::kResolvedRecipe;
  const launch::RoleValues values{{"student", {{"KEY", "before"}}}};
  launch::write_role_values(recipe, values);
  const RunFolder folder(run_, RunFolderMode::kResume);
  launch::write_role_values(recipe, {{"student", {{"KEY", "now"}}}});
  folder.write_resolved_recipe("recipe: dpo\n");
  folder.restore_recipe();
  EXPECT_EQ(get(recipe), "recipe: sft\n");
  EXPECT_EQ(launch::read_role_values(recipe), values);
}

TEST_F(RunFolderTest, ResumeNeedsARun) {
  EXPECT_EQ(error_of(RunFolderMode::kResume), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(run_)) << "nothing is made";
}

TEST_F(RunFolderTest, OverwriteRemovesTheRunAndNothingElse) {
  stopped_run();
  { RunFolder folder(run_, RunFolderMode::kOverwrite); }
  EXPECT_FALSE(fs::exists(run_ / "metrics.jsonl"));
  EXPECT_FALSE(fs::exists(run_ / "checkpoint-2"));
  stopped_run();
  put(run_ / "thesis.tex", "mine");
  EXPECT_EQ(error_of(RunFolderMode::kOverwrite), ErrorCode::kInvalidArgument);
  EXPECT_NE(message_.find("thesis.tex"), std::string::npos);
  EXPECT_TRUE(fs::exists(run_ / "checkpoint-2"));
  EXPECT_TRUE(fs::exists(run_ / "metrics.jsonl"));
}

// What a crash leaves beside its place has the name of that, and an end of its own.
TEST_F(RunFolderTest, OverwriteRemovesWhatACrashHasLeft) {
  stopped_run();
  for (const char* name : {"plan.json.tmp-71-0a1b2c3d", ".incarnation.tmp-71-0a1b2c3d",
                           "checkpoint-4.tmp-71-0a1b2c3d", "roles.env", "slurm.yaml",
                           "slurm.roles.env", "final.old-71-0a1b2c3d", "roles.env.tmp-71-0a1b2c3d"})
    put(run_ / name, "half");
  { RunFolder folder(run_, RunFolderMode::kOverwrite); }
  EXPECT_EQ(std::distance(fs::directory_iterator(run_), fs::directory_iterator()), 1) << ".lock";

  put(run_ / "thesis.tex.tmp-71-0a1b2c3d", "mine");
  EXPECT_EQ(error_of(RunFolderMode::kOverwrite), ErrorCode::kInvalidArgument);
}

// What a run needs to begin, a port for one, is not there: the run before is.
TEST_F(RunFolderTest, OverwriteRemovesNothingBeforeTheNextRunCanBegin) {
  stopped_run();
  const Error error = test::error_of([&] {
    RunFolder(run_, RunFolderMode::kOverwrite, Duration(100), {}, [](auto) -> std::set<fs::path> {
      throw Error(ErrorCode::kUnavailable, "cannot listen");
    });
  });
  EXPECT_EQ(error.message(), "cannot listen");
  EXPECT_TRUE(fs::exists(run_ / "checkpoint-2" / "config.json"));
  EXPECT_TRUE(fs::exists(run_ / "metrics.jsonl"));
}

// The mark that hosts hold, and the logs of their connections: they are asked before.
TEST_F(RunFolderTest, OverwriteSparesWhatTheNextRunHasMade) {
  stopped_run();
  put(run_ / "logs" / "student-0.log", "before");
  const RunFolder folder(run_, RunFolderMode::kOverwrite, Duration(100), {}, [&](auto) {
    EXPECT_TRUE(fs::exists(run_ / "checkpoint-2" / "config.json"));
    put(run_ / ".hosts", "mark");
    put(run_ / "logs" / "host-a.log", "connected");
    return std::set<fs::path>{".hosts", "logs/host-a.log", "logs/host-b.log"};
  });
  EXPECT_EQ(get(run_ / ".hosts"), "mark");
  EXPECT_EQ(get(run_ / "logs" / "host-a.log"), "connected");
  EXPECT_FALSE(fs::exists(run_ / "logs" / "student-0.log"));
  EXPECT_FALSE(fs::exists(run_ / "checkpoint-2"));
  EXPECT_FALSE(fs::exists(run_ / "metrics.jsonl"));
}

// The logs are on another disk, beside other things: nothing there is removed.
TEST_F(RunFolderTest, OverwriteLeavesWhatALinkLeadsTo) {
  stopped_run();
  fs::remove_all(run_ / "logs");
  put(folder_ / "elsewhere" / "thesis.tex", "mine");
  fs::create_directory_symlink(folder_ / "elsewhere", run_ / "logs");
  const RunFolder folder(run_, RunFolderMode::kOverwrite, Duration(100), {}, [&](auto) {
    put(run_ / "logs" / "host-a.log", "connected");
    return std::set<fs::path>{"logs/host-a.log"};
  });
  EXPECT_EQ(get(folder_ / "elsewhere" / "thesis.tex"), "mine");
  EXPECT_EQ(get(run_ / "logs" / "host-a.log"), "connected");
  EXPECT_TRUE(fs::is_symlink(run_ / "logs"));
  EXPECT_FALSE(fs::exists(run_ / "checkpoint-2"));
}

// So few descriptors that a deep folder cannot be walked: what is left of the run is in parts.
class FewDescriptors {
 public:
  FewDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    const int next = ::dup(0);
    ::close(next);
    const rlimit now{static_cast<rlim_t>(next) + 4, old_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &old_); }

 private:
  rlimit old_{};
};

TEST_F(RunFolderTest, WhatOverwriteCannotRemoveIsNoRunAnyMore) {
  stopped_run();
  fs::path deep = run_ / "final";
  for (int level = 0; level < 20; ++level)
    deep /= "deeper";
  put(deep / "model.safetensors", "x");

  std::optional<FewDescriptors> few;
  const Error error = test::error_of([&] {
    RunFolder(run_, RunFolderMode::kOverwrite, Duration(100), {}, [&](auto) {
      few.emplace();
      return std::set<fs::path>{};
    });
  });
  few.reset();
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("cannot remove " + (run_ / "final").string()), std::string::npos)
      << error.message();
  EXPECT_NE(error.message().find("removed in part and cannot be resumed"), std::string::npos)
      << error.message();

  // The metrics come behind the folder, and the checkpoint before it.
  EXPECT_FALSE(fs::exists(run_ / "checkpoint-2"));
  EXPECT_TRUE(fs::exists(run_ / "metrics.jsonl"));
  EXPECT_EQ(error_of(RunFolderMode::kResume), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of(RunFolderMode::kFresh), ErrorCode::kInvalidArgument);
  { RunFolder folder(run_, RunFolderMode::kOverwrite); }
  EXPECT_EQ(std::distance(fs::directory_iterator(run_), fs::directory_iterator()), 1) << ".lock";
}

// What began in the folder ends before anybody else may have it, whatever is thrown meanwhile.
TEST_F(RunFolderTest, IsLockedForAsLongAsWhatBeganInIt) {
  stopped_run();
  launch::FolderLock kept;
  const Error error = test::error_of([&] {
    RunFolder(run_, RunFolderMode::kOverwrite, Duration(100), {}, [&](const auto& lock) {
      kept = lock;
      put(run_ / "thesis.tex", "mine");
      return std::set<fs::path>{};
    });
  });
  EXPECT_NE(error.message().find("thesis.tex"), std::string::npos) << error.message();
  EXPECT_TRUE(fs::exists(run_ / "checkpoint-2"));
  EXPECT_EQ(error_of(RunFolderMode::kResume), ErrorCode::kUnavailable);
  EXPECT_NE(message_.find("another run"), std::string::npos) << message_;

  kept.reset();
  EXPECT_NO_THROW(RunFolder(run_, RunFolderMode::kResume, Duration(50)));
}

TEST_F(RunFolderTest, ASecondRunInTheSameFolderIsRefused) {
  stopped_run();
  const RunFolder folder(run_, RunFolderMode::kResume);
  EXPECT_EQ(error_of(RunFolderMode::kResume), ErrorCode::kUnavailable);
  EXPECT_NE(message_.find("another run"), std::string::npos) << message_;
}

TEST_F(RunFolderTest, WaitsForTheRunBeforeToEnd) {
  stopped_run();
  auto before = std::make_unique<RunFolder>(run_, RunFolderMode::kResume);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    before.reset();
  });
  EXPECT_NO_THROW(RunFolder(run_, RunFolderMode::kResume, Duration(30'000)));
  ends.join();
}

// Those of other hosts hold their mark, and none of this lock.
TEST_F(RunFolderTest, ChangesNothingWhileProcessesOfOtherHostsLive) {
  stopped_run();
  launch::make_run_mark(run_, Duration(0));
  std::optional<launch::RunMark> host = launch::read_run_mark(run_);
  const std::string metrics = get(run_ / "metrics.jsonl");
  for (const RunFolderMode mode : {RunFolderMode::kResume, RunFolderMode::kOverwrite}) {
    EXPECT_EQ(error_of(mode), ErrorCode::kUnavailable);
    EXPECT_NE(message_.find("processes of an earlier start still run on a host"), std::string::npos)
        << message_;
    EXPECT_EQ(get(run_ / "metrics.jsonl"), metrics);
  }

  host.reset();
  const RunFolder folder(run_, RunFolderMode::kResume);
  EXPECT_NE(get(run_ / "metrics.jsonl"), metrics);
}

// As two ranks of a student; the second is the last to leave.
TEST_F(RunFolderTest, ARunIsDrivenUntilTheLastDriverLeaves) {
  EXPECT_FALSE(launch::anyone_drives(folder_));
  std::optional<launch::DrivingLock> first(folder_);
  std::optional<launch::DrivingLock> second(folder_);
  EXPECT_TRUE(launch::anyone_drives(folder_));
  first.reset();
  EXPECT_TRUE(launch::anyone_drives(folder_));
  second.reset();
  EXPECT_FALSE(launch::anyone_drives(folder_));
  EXPECT_TRUE(launch::anyone_drives(folder_ / "no-such-folder")) << "cannot be known";
}

// What its processes prove beside the secret.
TEST_F(RunFolderTest, EveryStartHasAnIdWhichTheNextLauncherFinds) {
  const std::string id = launch::new_run_id(run_);
  EXPECT_TRUE(id.starts_with("run.")) << id;
  EXPECT_NE(launch::new_run_id(run_), id);
  EXPECT_EQ(test::code_of([&] { launch::read_run_id(run_); }), ErrorCode::kUnavailable);

  fs::create_directories(run_);
  launch::keep_run_id(run_, id);
  EXPECT_EQ(launch::read_run_id(run_), id);
  EXPECT_NO_THROW(RunFolder(run_, RunFolderMode::kOverwrite)) << "it is something that a run wrote";
}

}  // namespace
}  // namespace retort::test
