#include "base/private_file.h"

#include <sys/stat.h>

#include "base/log.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

namespace fs = std::filesystem;

class PrivateFile : public FolderTest {
 protected:
  fs::path with_mode(mode_t mode) const {
    put(folder_ / "key", "a key");
    ::chmod((folder_ / "key").c_str(), mode);
    return folder_ / "key";
  }
};

TEST_F(PrivateFile, OneThatOthersMayReadOrWriteIsRefused) {
  for (const mode_t mode : {0600, 0400, 0700})
    EXPECT_EQ(read_private_file(with_mode(mode)), "a key") << mode;
  for (const mode_t mode : {0644, 0640, 0604, 0620, 0601}) {
    const Error error = error_of([&] { read_private_file(with_mode(mode)); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << mode;
    EXPECT_NE(error.message().find("chmod 600 " + (folder_ / "key").string()), std::string::npos)
        << error.message();
    EXPECT_EQ(error.message().find("a key"), std::string::npos) << error.message();
  }
  EXPECT_NE(error_of([&] { read_private_file(folder_ / "none"); }).message().find("cannot open"),
            std::string::npos);
}

// Of this process, and nobody can change its mode.
TEST_F(PrivateFile, WhereModesCannotBeChangedARemedyIsSaidAndOnesOwnIsRead) {
  const fs::path file = "/proc/self/comm";
  const Error error = error_of([&] { read_private_file(file); });
  EXPECT_NE(error.message().find("keep it on another file system, or mount that one read-only"),
            std::string::npos)
      << error.message();
  testing::internal::CaptureStderr();
  const std::string text = read_own_private_file(file);
  drain_log();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text, read_file(file));
  EXPECT_NE(said.find("/proc/self/comm holds secrets, and its file system gives it mode 0644"),
            std::string::npos)
      << said;
}

// A volume's owner may have opened it meanwhile.
TEST_F(PrivateFile, OnesOwnGetsItsModeBack) {
  const fs::path file = with_mode(0660);
  EXPECT_EQ(read_own_private_file(file), "a key");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

// A link counts as what it leads to, as a kubelet makes one.
TEST_F(PrivateFile, ALinkHasTheModeOfItsFile) {
  const fs::path file = with_mode(0600);
  fs::create_symlink(file, folder_ / "link");
  EXPECT_EQ(read_private_file(folder_ / "link"), "a key");
  ::chmod(file.c_str(), 0644);
  EXPECT_THROW(read_private_file(folder_ / "link"), Error);
}

TEST_F(PrivateFile, WhatIsWrittenIsForItsOwnerAlone) {
  const fs::path file = with_mode(0644);
  const mode_t before = ::umask(0);
  write_private_file(file, std::string("new\0one", 7));
  ::umask(before);
  struct stat found {};
  ASSERT_EQ(::stat(file.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0600u);
  EXPECT_EQ(read_private_file(file), std::string("new\0one", 7));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace retort::test
