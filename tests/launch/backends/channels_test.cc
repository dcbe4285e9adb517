// What travels between a launcher and its processes.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "launch/process/child_context.h"
#include "launch/process/child_process.h"
#include "launch/supervision/process_status.h"
#include "rpc/supervision/supervision.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using launch::ProcessStatus;

TEST(ProcessStatusTest, MessagesKeepTheirBounds) {
  const auto sent = [](const ProcessStatus& status) {
    return launch::decode_status(launch::encode_status(status));
  };
  EXPECT_EQ(sent({"training", 5, "two\nlines \"quoted\"", ""}),
            (ProcessStatus{"training", 5, "two lines \"quoted\"", ""}));
  EXPECT_TRUE(sent({.state = "training", .message = "a spike", .warning = true})->warning);
  const auto failed =
      sent({"failed", 6, std::string(5000, 'x'), "peer_lost", /*of_another_rank=*/true});
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->error, "peer_lost");
  EXPECT_TRUE(failed->of_another_rank);
  EXPECT_EQ(failed->message, std::string(1000, 'x') + "...");
}

// The longest that a status can get fits into a report.
TEST(ProcessStatusTest, FitsIntoAReport) {
  const ProcessStatus status{"interrupted", -1'000'000'000'000, std::string(5000, '\xff'),
                             "resource_exhausted"};
  EXPECT_LE(launch::encode_status(status).size(), rpc::kMaxReportBytes);
}

// A message quotes paths and rows, which may have any encoding: the failure must not get lost.
TEST(ProcessStatusTest, BytesThatAreNotUtf8AreReplaced) {
  const ProcessStatus status{"failed", 1, "no file '/data/caf\xe9.jsonl'", "kInvalidArgument"};
  const auto arrived = launch::decode_status(launch::encode_status(status));
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->message, "no file '/data/caf\xef\xbf\xbd.jsonl'");
}

TEST(ProcessStatusTest, NonsenseIsNotAStatus) {
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
                                     .life = 1'700'000'000'002,
                                     .store_host = "127.0.0.1",
                                     .store_port = 65535,
                                     .secret = "se\"cret",
                                     .encryption = rpc::Encryption::kAlways,
                                     .bind = "10.0.0.0/8",
                                     .advertise = "gpu1:7000",
                                     .cuda = true,
                                     .ranks_on_host = {{"student", 2}, {"teacher", 4}},
                                     .heartbeat_interval = Duration(200),
                                     .peer_timeout = Duration(2'000),
                                     .resume = true,
                                     .threads = 4,
                                     .recipe = "recipe: sft\noutput_dir: \"a\"\n",
                                     .joined = true,
                                     .stop_timeout = Duration(90'000)};
  EXPECT_EQ(launch::decode_context(launch::encode_context(context)), context);
  EXPECT_THROW(launch::decode_context("{\"run\": 1}"), Error);
  EXPECT_THROW(launch::decode_context(""), Error);
}

TEST(ChildContextTest, StartedByHandIsTheUsersMistake) {
  ::unsetenv(launch::kContextVariable);
  EXPECT_EQ(code_of([] { launch::read_child_context(); }), ErrorCode::kInvalidArgument);
}

// Whoever starts a process on another host may keep its stdin open.
TEST(ChildContextTest, IsOneLineOfStdin) {
  const launch::ChildContext context{.run = "run", .role = "teacher", .secret = "secret"};
  const std::string line = launch::encode_context(context) + "\nnot of the context";
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(::write(ends[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  const int before = ::dup(STDIN_FILENO);
  ::dup2(ends[0], STDIN_FILENO);
  ::setenv(launch::kContextVariable, "stdin", 1);
  EXPECT_EQ(launch::read_child_context(), context);
  EXPECT_EQ(std::getenv(launch::kContextVariable), nullptr);
  char byte;
  EXPECT_EQ(::read(STDIN_FILENO, &byte, 1), 0) << "what this process starts could read on";
  ::dup2(before, STDIN_FILENO);
  for (const int fd : {ends[0], ends[1], before})
    ::close(fd);
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
