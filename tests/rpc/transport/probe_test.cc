// Data connections on which nothing comes any more: cut without a word, while the control
// connection lives.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/rpc/transport/echo_pipe.h"
#include "tests/rpc/transport/node.h"
#include "tests/rpc/transport/raw_stream.h"

namespace retort::rpc::transport::testing {
namespace {

constexpr auto kSilence = 2s;

class Probes : public ::testing::Test {
 protected:
  static NodeOptions options(std::string name) {
    auto made = node_options(std::move(name));
    made.context.probe_interval = 100ms;
    made.context.silence_timeout = kSilence;
    return made;
  }
  // A pipe's first connection, by hand: TensorPipe greets, and then waits for more.
  std::unique_ptr<RawStream> greeted() {
    auto stream = std::make_unique<RawStream>(server.address());
    EXPECT_TRUE(prove(*stream, client.options.identity,
                      {"teacher/0", Purpose::kData, session, client.session(session).key}));
    // A variant's first kind, a structure of one member, a text.
    stream->send(data_frame(std::string("\xb8\x00\xb9\x01\xbd\x01x", 7)));
    return stream;
  }
  static bool only_probes(const std::string& bytes) {
    return bytes.find_first_not_of('\xff') == std::string::npos;
  }

  Node server{options("teacher/0")};
  Node client{options("student/0")};
  const std::string session = client.connect("teacher/0", server.address());
};

TEST_F(Probes, ASilentConnectionHasFailed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto stream = greeted();
  const std::string came = stream->drain();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, kSilence - 100ms);
  EXPECT_GE(came.size(), 8u) << "the server probes too";
  EXPECT_TRUE(only_probes(came));
}

TEST_F(Probes, KeepAConnectionThatHasNothingToSay) {
  const auto stream = greeted();
  const std::string probe(8, '\xff');
  // In pieces, as they may arrive.
  for (const auto end = Deadline::after(2 * kSilence); !end.expired();) {
    stream->send(probe.substr(0, 3));
    std::this_thread::sleep_for(10ms);
    stream->send(probe.substr(3));
    std::this_thread::sleep_for(10ms);
  }
  std::string came(1 << 16, '\0');
  const ssize_t got = ::recv(stream->fd(), came.data(), came.size(), MSG_DONTWAIT);
  ASSERT_GT(got, 0) << "the connection has ended";
  EXPECT_TRUE(only_probes(came.substr(0, static_cast<size_t>(got))));
}

TEST_F(Probes, PipesThatWaitLongLive) {
  const auto pipe = client.pipe(session);
  ASSERT_TRUE(answers(pipe));
  std::this_thread::sleep_for(2 * kSilence);
  EXPECT_TRUE(answers(pipe));
}

}  // namespace
}  // namespace retort::rpc::transport::testing
