#include "base/end_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/file.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temporary_folder.h"

namespace retort {
namespace {

TEST(EndProcess, WritesWhatStandsInBuffersAndRunsNothingElse) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer reports at an ordinary end";
  const test::TemporaryFolder folder;
  const std::string output = (folder / "output").string(), other = (folder / "other").string();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::FILE* const file = std::fopen(other.c_str(), "w");
    if (!file || !std::freopen(output.c_str(), "w", stdout)) ::_exit(1);
    std::atexit([] { std::fputs(", of an ordinary end", stdout); });
    std::printf("of C, ");
    std::cout << "of C++";
    std::fputs("a file", file);
    end_process(7);
  }

  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(read_file(output), "of C, of C++");
  EXPECT_EQ(read_file(other), "a file");
}

}  // namespace
}  // namespace retort
