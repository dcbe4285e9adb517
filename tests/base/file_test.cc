#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "base/error.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort {
namespace {
namespace fs = std::filesystem;

class Files : public test::FolderTest {
 protected:
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_))
      found.insert(entry.path().filename());
    return found;
  }
  template <class F>
  static ErrorCode code_of(F&& f, const std::string& part) {
    const Error error = test::error_of(f);
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    return error.code();
  }
};

// Files of this process may not grow beyond `bytes`: writing more fails with EFBIG, as a full disk
// does with ENOSPC.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit now{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &old_); }

 private:
  rlimit old_{};
};

TEST_F(Files, WritesAndReadsBackAnyBytes) {
  std::string content(300'000, '\0');
  for (size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<char>(i * 31);
  write_file_atomically(folder_ / "a", content);
  EXPECT_EQ(read_file(folder_ / "a"), content);
  write_file_atomically(folder_ / "a", "");
  EXPECT_EQ(read_file(folder_ / "a"), "");
  EXPECT_EQ(names(), std::set<std::string>{"a"}) << "no temporary file stays";
}

TEST_F(Files, ReplacingLeavesOneFile) {
  replace_file(folder_ / "a", "old and long");
  replace_file(folder_ / "a", "new");
  EXPECT_EQ(read_file(folder_ / "a"), "new");
  EXPECT_EQ(names(), std::set<std::string>{"a"}) << "no temporary file stays";
  EXPECT_EQ(code_of([&] { replace_file(folder_ / "missing" / "a", ""); }, "missing"),
            ErrorCode::kUnavailable);
}

// A link to itself is there, and cannot be read.
TEST_F(Files, WhatIsNotThereIsToldFromWhatCannotBeRead) {
  write_file_atomically(folder_ / "a", "content");
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(read_file_if_there(folder_ / "a"), "content");
  EXPECT_TRUE(is_file_there(folder_ / "a"));
  for (const fs::path& none : {folder_ / "none", folder_ / "a" / "below"}) {
    EXPECT_EQ(read_file_if_there(none), std::nullopt);
    EXPECT_FALSE(is_file_there(none));
  }
  EXPECT_EQ(code_of([&] { read_file_if_there(folder_ / "loop"); }, "loop"),
            ErrorCode::kUnavailable);
  EXPECT_EQ(code_of([&] { is_file_there(folder_ / "loop"); }, "loop"), ErrorCode::kUnavailable);
}

TEST_F(Files, ReadNamesTheMissingFile) {
  EXPECT_EQ(code_of([&] { read_file(folder_ / "missing"); }, "missing"),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { read_file(folder_); }, folder_.string()), ErrorCode::kInvalidArgument)
      << "a folder";
}

TEST_F(Files, FullDiskKeepsTheOldContent) {
  write_file_atomically(folder_ / "a", "old");
  {
    FileSizeLimit limit(1000);
    EXPECT_EQ(code_of([&] { write_file_atomically(folder_ / "a", std::string(5000, 'x')); },
                      "free space"),
              ErrorCode::kResourceExhausted);
  }
  EXPECT_EQ(read_file(folder_ / "a"), "old");
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(Files, MissingFolderIsUnavailable) {
  EXPECT_EQ(code_of([&] { write_file_atomically(folder_ / "no/a", "x"); }, "no/a"),
            ErrorCode::kUnavailable);
}

TEST_F(Files, NothingIsVisibleBeforeCommit) {
  AtomicFile file(folder_ / "a");
  file.write("one ");
  const std::byte more[] = {std::byte{'2'}, std::byte{'!'}};
  file.write(std::span<const std::byte>(more));
  EXPECT_EQ(file.size_bytes(), 6u);
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  file.commit();
  EXPECT_EQ(read_file(folder_ / "a"), "one 2!");
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(Files, DestructionWithoutCommitLeavesNothing) {
  write_file_atomically(folder_ / "a", "old");
  { AtomicFile(folder_ / "a").write("new"); }
  EXPECT_EQ(read_file(folder_ / "a"), "old");
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(Files, CommitOntoAFolderFailsAndCleansUp) {
  fs::create_directories(folder_ / "a/child");
  AtomicFile file(folder_ / "a");
  file.write("x");
  EXPECT_EQ(code_of([&] { file.commit(); }, "a"), ErrorCode::kUnavailable);
  EXPECT_EQ(names(), std::set<std::string>{"a"});
  EXPECT_TRUE(fs::is_directory(folder_ / "a/child"));
}

// A process that dies in the middle leaves the old content under the name.
TEST_F(Files, AKilledWriterLeavesTheOldContent) {
  write_file_atomically(folder_ / "a", "old");
  const auto die = [&] {
    AtomicFile file(folder_ / "a");
    file.write("half of the new con");
    ::raise(SIGKILL);
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGKILL), "");
  EXPECT_EQ(read_file(folder_ / "a"), "old");
}

TEST_F(Files, FolderAppearsWhole) {
  write_folder_atomically(folder_ / "c", [&](const fs::path& temporary) {
    EXPECT_FALSE(fs::exists(folder_ / "c"));
    fs::create_directories(temporary / "state");
    std::ofstream(temporary / "state/x") << "1";
    std::ofstream(temporary / "y") << "2";
  });
  EXPECT_EQ(read_file(folder_ / "c/state/x"), "1");
  EXPECT_EQ(read_file(folder_ / "c/y"), "2");
  EXPECT_EQ(names(), std::set<std::string>{"c"});
}

TEST_F(Files, FolderReplacesTheOldOneWhole) {
  const auto write = [&](const std::string& name) {
    write_folder_atomically(
        folder_ / "c", [&](const fs::path& temporary) { std::ofstream(temporary / name) << name; });
  };
  write("first");
  write("second");
  EXPECT_FALSE(fs::exists(folder_ / "c/first"));
  EXPECT_EQ(read_file(folder_ / "c/second"), "second");
  EXPECT_EQ(names(), std::set<std::string>{"c"});
}

// There is no moment in which a reader finds neither.
TEST_F(Files, AFolderThatIsReplacedIsAlwaysThere) {
  const auto write = [&](int number) {
    write_folder_atomically(folder_ / "c", [&](const fs::path& temporary) {
      std::ofstream(temporary / "x") << number;
    });
  };
  write(0);
  std::atomic<bool> done{false};
  std::atomic<int> missing{0}, looks{0};
  std::thread reader([&] {
    while (!done) {
      missing += ::access((folder_ / "c").c_str(), F_OK) == 0 ? 0 : 1;
      ++looks;
    }
  });
  while (looks == 0)
    std::this_thread::yield();
  for (int number = 1; number <= 100; ++number)
    write(number);
  done = true;
  reader.join();
  EXPECT_EQ(missing, 0) << "of " << looks << " looks";
  EXPECT_EQ(read_file(folder_ / "c/x"), "100");
  EXPECT_EQ(names(), std::set<std::string>{"c"});
}

TEST_F(Files, FailureWhileFillingKeepsTheOldFolder) {
  write_folder_atomically(
      folder_ / "c", [](const fs::path& temporary) { std::ofstream(temporary / "x") << "old"; });
  const auto fail = [&] {
    write_folder_atomically(folder_ / "c", [](const fs::path& temporary) {
      std::ofstream(temporary / "x") << "new";
      throw Error(ErrorCode::kCancelled, "stopped in the middle");
    });
  };
  EXPECT_EQ(code_of(fail, "stopped in the middle"), ErrorCode::kCancelled)
      << "the cause arrives as it was";
  EXPECT_EQ(read_file(folder_ / "c/x"), "old");
  EXPECT_EQ(names(), std::set<std::string>{"c"});
}

TEST_F(Files, FullDiskWhileFillingKeepsTheOldFolder) {
  write_folder_atomically(
      folder_ / "c", [](const fs::path& temporary) { std::ofstream(temporary / "x") << "old"; });
  FileSizeLimit limit(1000);
  const auto fail = [&] {
    write_folder_atomically(folder_ / "c", [](const fs::path& temporary) {
      write_file_atomically(temporary / "x", std::string(5000, 'x'));
    });
  };
  EXPECT_EQ(code_of(fail, "free space"), ErrorCode::kResourceExhausted);
  EXPECT_EQ(read_file(folder_ / "c/x"), "old");
  EXPECT_EQ(names(), std::set<std::string>{"c"});
}

TEST_F(Files, FolderUnderAFileIsUnavailable) {
  write_file_atomically(folder_ / "a", "x");
  EXPECT_EQ(
      code_of([&] { write_folder_atomically(folder_ / "a/c", [](const fs::path&) {}); }, "a/c"),
      ErrorCode::kUnavailable);
  EXPECT_EQ(names(), std::set<std::string>{"a"});
}

TEST_F(Files, AFolderIsFilledByAnybodyAndCommitted) {
  {
    AtomicFolder folder(folder_ / "c");
    std::ofstream(folder.temporary() / "x") << "1";
  }
  EXPECT_EQ(names(), std::set<std::string>{}) << "given up";
  AtomicFolder folder(folder_ / "c");
  std::ofstream(folder.temporary() / "x") << "2";
  EXPECT_FALSE(fs::exists(folder_ / "c"));
  folder.commit();
  EXPECT_EQ(read_file(folder_ / "c/x"), "2");
  EXPECT_EQ(names(), std::set<std::string>{"c"});
}

TEST_F(Files, SharedFilesAreWrittenAtTheirPlaces) {
  reserve_file(folder_ / "a", "head", 12);
  EXPECT_EQ(read_file(folder_ / "a"), std::string("head\0\0\0\0\0\0\0\0", 12));
  SharedFile first(folder_ / "a"), second(folder_ / "a");
  second.write(8, std::as_bytes(std::span("789A", 4)));
  SharedFile moved(std::move(first));
  moved.write(4, std::as_bytes(std::span("3456", 4)));
  moved.sync();
  EXPECT_EQ(read_file(folder_ / "a"), "head3456789A");
  EXPECT_EQ(code_of([&] { SharedFile file(folder_ / "missing"); }, "missing"),
            ErrorCode::kUnavailable);
  rename_file(folder_ / "a", folder_ / "b");
  EXPECT_EQ(names(), std::set<std::string>{"b"});
  EXPECT_EQ(code_of([&] { rename_file(folder_ / "a", folder_ / "b"); }, "b"),
            ErrorCode::kUnavailable);
}

TEST_F(Files, AFullDiskShowsWhenTheFileIsReserved) {
  FileSizeLimit limit(1000);
  EXPECT_EQ(code_of([&] { reserve_file(folder_ / "a", "head", 5000); }, "5000 bytes"),
            ErrorCode::kResourceExhausted);
  EXPECT_EQ(names(), std::set<std::string>{});
  reserve_file(folder_ / "a", "head", 1000);
  SharedFile file(folder_ / "a");
  EXPECT_EQ(code_of([&] { file.write(1000, std::as_bytes(std::span("x", 1))); }, "free space"),
            ErrorCode::kResourceExhausted);
}

TEST_F(Files, MapShowsTheBytesAndMoves) {
  write_file_atomically(folder_ / "a", "hello");
  MappedFile map(folder_ / "a");
  EXPECT_EQ(map.text(), "hello");
  EXPECT_EQ(map.bytes().size(), 5u);
  MappedFile moved(std::move(map));
  fs::remove(folder_ / "a");
  EXPECT_EQ(moved.text(), "hello") << "lives as long as the object";
  EXPECT_EQ(moved.path(), folder_ / "a");
}

TEST_F(Files, MapOfNothing) {
  write_file_atomically(folder_ / "empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
  EXPECT_EQ(code_of([&] { MappedFile map(folder_ / "missing"); }, "missing"),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { MappedFile map(folder_); }, "not a regular file"),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace retort
