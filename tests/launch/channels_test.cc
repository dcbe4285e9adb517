// What travels between a launcher and its processes.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "launch/backends/child_process.h"
#include "launch/supervision/child_context.h"
#include "launch/supervision/status_pipe.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using launch::ProcessStatus;

TEST(StatusPipeTest, MessagesKeepTheirBounds) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
  {
    launch::StatusPipe pipe(fds[1]);
    pipe.report({"training", 5, "two\nlines \"quoted\"", ""});
    pipe.report({"failed", 6, std::string(5000, 'x'), "peer_lost", /*of_another_rank=*/true});
  }
  char buffer[8192];
  const auto receive = [&] {
    const ssize_t got = ::recv(fds[0], buffer, sizeof buffer, 0);
    return launch::decode_status(
        std::string_view(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0))));
  };
  EXPECT_EQ(receive(), (ProcessStatus{"training", 5, "two lines \"quoted\"", ""}));
  const auto failed = receive();
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->error, "peer_lost");
  EXPECT_TRUE(failed->of_another_rank);
  EXPECT_EQ(failed->message, std::string(1000, 'x') + "...");
  EXPECT_FALSE(receive()) << "the end";
  ::close(fds[0]);
}

// A message quotes paths and rows, which may have any encoding: the failure must not get lost.
TEST(StatusPipeTest, BytesThatAreNotUtf8AreReplaced) {
  const ProcessStatus status{"failed", 1, "no file '/data/caf\xe9.jsonl'", "kInvalidArgument"};
  const auto arrived = launch::decode_status(launch::encode_status(status));
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->message, "no file '/data/caf\xef\xbf\xbd.jsonl'");
}

TEST(StatusPipeTest, NobodyListeningIsNoError) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
  ::close(fds[0]);
  launch::StatusPipe(fds[1]).report({"serving", 0, "", ""});  // neither SIGPIPE nor an exception
  launch::StatusPipe(-1).report({"serving", 0, "", ""});
}

TEST(StatusPipeTest, AFullPipeNeverBlocks) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
  launch::StatusPipe pipe(fds[1]);
  for (int i = 0; i < 20'000; ++i)
    pipe.report({"training", i, std::string(900, 'x'), ""});
  ::close(fds[0]);
}

TEST(StatusPipeTest, NonsenseIsNotAStatus) {
  for (const char* text :
       {"", "{", "[]", "{\"state\": 1, \"message\": \"\", \"error\": \"\", \"step\": 0}",
        "{\"state\": \"x\"}",
        "{\"state\": \"x\", \"message\": \"\", \"error\": \"\", \"step\": 0}"})
    EXPECT_FALSE(launch::decode_status(text)) << text;
}

TEST(ChildContextTest, RoundTrip) {
  const launch::ChildContext context{.run = "run",
                                     .role = "teacher",
                                     .rank = 3,
                                     .incarnation = 7,
                                     .restart = 2,
                                     .store_host = "127.0.0.1",
                                     .store_port = 65535,
                                     .secret = "se\"cret",
                                     .resume = true,
                                     .threads = 4,
                                     .stop_timeout = Duration(90'000)};
  EXPECT_EQ(launch::decode_context(launch::encode_context(context)), context);
  EXPECT_THROW(launch::decode_context("{\"run\": 1}"), Error);
  EXPECT_THROW(launch::decode_context(""), Error);
}

TEST(ChildContextTest, StartedByHandIsTheUsersMistake) {
  ::unsetenv(launch::kChannelsVariable);
  EXPECT_EQ(code_of([] { launch::open_child_channels(); }), ErrorCode::kInvalidArgument);
}

TEST(ChildEnvironmentTest, OursIsTakenOutAndThreadsAreSet) {
  ::setenv("RETORT_SOMETHING", "1", 1);
  ::setenv("RETORT_LOG", "debug", 1);
  ::setenv("OMP_NUM_THREADS", "64", 1);
  ::setenv("KEEP_ME", "a=b", 1);
  const auto environment = launch::child_environment(3);
  const auto count = [&](const std::string& entry) {
    return std::count(environment.begin(), environment.end(), entry);
  };
  EXPECT_EQ(count("OMP_NUM_THREADS=3"), 1);
  EXPECT_EQ(count("MKL_NUM_THREADS=3"), 1);
  EXPECT_EQ(count("OMP_WAIT_POLICY=passive"), 1);
  EXPECT_EQ(count("OMP_NUM_THREADS=64"), 0);
  EXPECT_EQ(count("RETORT_SOMETHING=1"), 0);
  EXPECT_EQ(count("RETORT_LOG=debug"), 1);
  EXPECT_EQ(count("KEEP_ME=a=b"), 1);
  const auto of_role = launch::child_environment(3, {{"KEEP_ME", "c"}, {"NCCL_DEBUG", "INFO"}});
  EXPECT_EQ(std::count(of_role.begin(), of_role.end(), "KEEP_ME=a=b"), 0);
  EXPECT_EQ(std::count(of_role.begin(), of_role.end(), "KEEP_ME=c"), 1);
  EXPECT_EQ(std::count(of_role.begin(), of_role.end(), "NCCL_DEBUG=INFO"), 1);
  ::unsetenv("RETORT_LOG");
  ::unsetenv("RETORT_SOMETHING");
}

TEST(ThreadsTest, ZeroSharesTheCoresAndNeverGivesNone) {
  EXPECT_EQ(launch::threads_per_process(5, 100), 5);
  EXPECT_EQ(launch::threads_per_process(0, 1'000'000), 1);
  EXPECT_GE(launch::threads_per_process(0, 1), 1);
}

}  // namespace
}  // namespace retort::test
