// Two processes, one of which is killed in the middle of things; and many threads that drop pipes.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/rpc/transport/echo_pipe.h"
#include "tests/rpc/transport/node.h"
#include "tests/rpc/transport/spawned_node.h"

namespace retort::rpc::transport::testing {
namespace {

class TwoProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  static NodeOptions options(std::string name) {
    auto made = node_options(std::move(name));
    made.channels = {"basic"};
    if (channels() == "cma,basic") made.channels = {"cma", "basic"};
    made.tls = tls();
    return made;
  }
  static std::string channels() { return std::string(GetParam()) == "cma" ? "cma,basic" : "basic"; }
  static bool tls() { return std::string(GetParam()) == "tls"; }
};

TEST_P(TwoProcesses, MessagesArrive) {
  auto server = spawn_node(channels(), tls());
  Node client(options("student/0"));
  const auto pipe = client.pipe(client.connect("teacher/0", server.address));
  uint64_t seed = 1;
  for (const auto& shape : std::vector<std::vector<size_t>>{
           {}, {0}, {1}, {0, 5}, {16 << 10, 3, 1 << 20}, {8 << 20, 1, 0, 77'777}, {64 << 20}})
    for (const size_t payload : {size_t{1}, size_t{300'000}}) {
      const auto parcel = make_parcel(++seed, payload, shape);
      ASSERT_TRUE(converse(pipe, parcel)->same_content(*parcel));
    }
  server.process.close_stdin();
  EXPECT_EQ(server.process.wait(soon()), 0);
}

TEST_P(TwoProcesses, AKilledPeerFailsEveryCallbackOnceAndInOrder) {
  for (int round = 0; round < 3; ++round) {
    auto server = spawn_node(channels(), tls());
    Node client(options("student/0"));
    const auto pipe = client.pipe(client.connect("teacher/0", server.address));
    ASSERT_TRUE(answers(pipe));

    auto parcel = make_parcel(1, 10, {32 << 20});
    parcel->how = "sink";
    std::mutex mutex;
    std::vector<int> order;
    std::vector<std::future<tensorpipe::Error>> unused;
    std::promise<void> all;
    auto never = receive(pipe);
    for (int i = 0; i < 20; ++i)
      pipe->write(parcel->message(), [&, i](const tensorpipe::Error&) {
        std::lock_guard lock(mutex);
        order.push_back(i);
        if (order.size() == 20) all.set_value();
      });
    std::this_thread::sleep_for(round * 10ms);
    server.process.kill();
    ASSERT_EQ(all.get_future().wait_for(60s), std::future_status::ready);
    EXPECT_TRUE(never.get()->error);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    client.close();
    EXPECT_EQ(order.size(), 20u) << "each ran once";
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, TwoProcesses, ::testing::Values("basic", "cma", "tls"),
                         [](const auto& info) { return info.param; });

TEST(Stress, ThreadsThatOpenUseAndDropPipes) {
  constexpr int kThreads = 6, kPipes = 100;
  auto server = spawn_node("basic");
  Node client(node_options("student/0"));
  const auto session = client.connect("teacher/0", server.address);
  std::atomic<int> good{0}, bad{0}, dropped{0};

  const auto work = [&](unsigned seed) {
    std::minstd_rand random(seed);
    for (int i = 0; i < kPipes; ++i) {
      auto pipe = client.pipe(session);
      auto parcel = make_parcel(random(), 1 + random() % 5000, {random() % 1'000'000});
      if (i % 3 != 0) {
        ++(converse(pipe, parcel)->same_content(*parcel) ? good : bad);
        continue;
      }
      // Dropped in the middle; its callback runs all the same.
      parcel->how = "sink";
      auto sent = send(pipe, parcel);
      if (random() % 2 == 0) pipe->close();
      pipe.reset();
      ASSERT_EQ(sent.wait_for(60s), std::future_status::ready);
      ++dropped;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i)
    threads.emplace_back(work, i + 1);
  for (auto& thread : threads)
    thread.join();

  EXPECT_EQ(bad, 0);
  EXPECT_EQ(good + dropped, kThreads * kPipes);
  EXPECT_TRUE(answers(client.pipe(session)));
  server.process.close_stdin();
  EXPECT_EQ(server.process.wait(soon()), 0);
}

TEST(Stress, SessionsThatComeAndGo) {
  Node server(node_options("teacher/0"));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&server, i] {
      Node client(node_options("student/" + std::to_string(i)));
      for (int round = 0; round < 25; ++round) {
        const auto session = client.connect("teacher/0", server.address());
        const auto pipe = client.pipe(session);
        ASSERT_TRUE(answers(pipe));
        auto parcel = make_parcel(5, 5, {1 << 20});
        auto sent = send(pipe, parcel);
        client.end_session(session);
        ASSERT_EQ(sent.wait_for(60s), std::future_status::ready);
      }
    });
  for (auto& thread : threads)
    thread.join();
  // The server sees each session's end by itself.
  const auto deadline = soon();
  while (server.context->num_connections() > 0 && !deadline.expired())
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(server.context->num_connections(), 0u);
}

}  // namespace
}  // namespace retort::rpc::transport::testing
