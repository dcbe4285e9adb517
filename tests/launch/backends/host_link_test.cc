// The end of a launcher's connections to other hosts. A shell script stands in for ssh.
#include "launch/ssh/host_link.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/folder_fixture.h"

namespace retort::test {
namespace {

namespace fs = std::filesystem;
using launch::HostLink;

class HostLinkTest : public FolderTest {
 protected:
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    FolderTest::TearDown();
  }
  // What `ssh` does from here on; "$*" are its arguments.
  void ssh_is(const std::string& script) const {
    const fs::path program = folder_ / "bin" / "ssh";
    put(program, "#!/bin/sh\n" + script);
    fs::permissions(program, fs::perms::owner_all);
    ::setenv("PATH", ((folder_ / "bin").string() + ":" + path_).c_str(), 1);
  }
  launch::HostLinkOptions host(const std::string& name) const {
    return {.host = {.host = name, .address = {}},
            .ssh = {},
            .run_folder = folder_,
            .mark = {},
            .log = folder_ / (name + ".log")};
  }

 private:
  const std::string path_ = std::getenv("PATH");
};

// Each host ends when it has been listened to, whatever becomes of the one before it: the first one
// here waits for the second, which has more to say than a pipe holds.
TEST_F(HostLinkTest, AllHostsEndAtTheSameTime) {
  const std::string said = (folder_ / "said").string();
  ssh_is(
      "case \"$*\" in\n"
      "*first*) while [ ! -e '" +
      said +
      "' ]; do sleep 0.05; done ;;\n"
      "*) head -c 300000 /dev/zero && : > '" +
      said +
      "' ;;\n"
      "esac\n");
  HostLink first(host("first")), second(host("second"));
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  HostLink::end_all({&first, &second}, deadline);
  EXPECT_FALSE(deadline.expired()) << "the first one was waited for alone";
  EXPECT_TRUE(fs::exists(said));
  ASSERT_NE(first.lost(), nullptr);
  EXPECT_EQ(first.lost()->message(), "host first has finished");
}

}  // namespace
}  // namespace retort::test
