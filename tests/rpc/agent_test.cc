// What an agent promises, plain and under TLS, on every channel: typed calls with tensors, both
// ways, many at once, errors with their codes.
#include "rpc/agent.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include "tests/rpc/echo.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::testing {
namespace {

struct Setup {
  std::string name;
  Encryption encryption;
  std::vector<std::string> channels;
};

class AgentContract : public ::testing::TestWithParam<Setup> {
 protected:
  RpcOptions rpc() const {
    RpcOptions options;
    options.encryption = GetParam().encryption;
    options.channels = GetParam().channels;
    return options;
  }
  void SetUp() override {
    serve_echo(server, handlers.queue);
    client.connect("teacher/0", server.address(), soon());
  }
  HandlerThread handlers;
  Agent server{agent_options("teacher/0", rpc())};
  Agent client{agent_options("student/0", rpc())};
};

TEST_P(AgentContract, EchoesText) {
  const auto reply = client.call("teacher/0", kEcho, {.text = "hello"}).get();
  EXPECT_EQ(reply.text, "hello");
  EXPECT_EQ(reply.caller, "student/0");
  EXPECT_EQ(client.peers(), std::vector<std::string>{"teacher/0"});
}

TEST_P(AgentContract, EchoesTensorsOfEveryKind) {
  // Every dtype, then every form: empty, of no dimension, transposed, strided, expanded, undefined.
  std::vector<at::Tensor> sent;
  for (auto dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat,
                     at::kDouble, at::kBool, at::kBFloat16, at::kComplexFloat})
    sent.push_back(at::arange(24, at::kFloat).reshape({2, 3, 4}).to(dtype));
  sent.push_back(at::empty({0}));
  sent.push_back(at::empty({3, 0, 2}, at::kLong));
  sent.push_back(at::scalar_tensor(1.5, at::kDouble));
  sent.push_back(at::arange(12).reshape({3, 4}).t());
  sent.push_back(at::arange(12).slice(0, 1, 12, 3));
  sent.push_back(at::ones({1}).expand({5, 4}));
  sent.emplace_back();                    // undefined
  sent.push_back(at::rand({512, 1024}));  // 2 MiB: the bulk pipe

  const auto reply = client.call("teacher/0", kEcho, {.text = "tensors", .tensors = sent}).get();
  ASSERT_EQ(reply.tensors.size(), sent.size());
  EXPECT_FALSE(reply.inference);
  for (size_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(reply.tensors[i].defined(), sent[i].defined()) << i;
    if (!sent[i].defined()) continue;
    EXPECT_EQ(reply.tensors[i].scalar_type(), sent[i].scalar_type()) << i;
    EXPECT_EQ(reply.tensors[i].sizes(), sent[i].sizes()) << i;
    EXPECT_TRUE(at::equal(reply.tensors[i], sent[i])) << i;
    EXPECT_FALSE(reply.tensors[i].is_inference());
    EXPECT_TRUE(sent[i].numel() == 0 ||
                reply.tensors[i].const_data_ptr() != sent[i].const_data_ptr())
        << "it did travel";
  }
}

TEST_P(AgentContract, ManyTensorsWithManyDims) {
  EchoRequest request;
  for (int i = 0; i < 4096; ++i)
    request.tensors.push_back(at::full(std::vector<int64_t>(16, 1), i, at::kInt));
  const auto reply = client.call("teacher/0", kEcho, request).get();
  ASSERT_EQ(reply.tensors.size(), 4096u);
  EXPECT_EQ(reply.tensors[4095].item<int>(), 4095);
  request.tensors.push_back(at::ones({1}));
  auto refused = client.call("teacher/0", kEcho, request);
  EXPECT_EQ(code_of(refused), ErrorCode::kResourceExhausted);
}

TEST_P(AgentContract, CallsGoBothWaysOverOneConnection) {
  HandlerThread more;
  serve_echo(client, more.queue);
  std::vector<Future<EchoReply>> there, back;
  for (int i = 0; i < 50; ++i) {
    there.push_back(client.call("teacher/0", kEcho, {.text = std::to_string(i)}));
    back.push_back(server.call("student/0", kEcho,
                               {.text = std::to_string(i), .tensors = {at::full({1000 * i}, i)}}));
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(there[i].get().text, std::to_string(i));
    const auto reply = back[i].get();
    EXPECT_EQ(reply.caller, "teacher/0");
    EXPECT_TRUE(at::equal(reply.tensors[0], at::full({1000 * i}, i)));
  }
}

TEST_P(AgentContract, ManyConcurrentCallsFromManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::vector<Future<EchoReply>> futures;
      for (int i = 0; i < 100; ++i)
        futures.push_back(client.call("teacher/0", kEcho,
                                      {.text = std::to_string(t * 1000 + i),
                                       .tensors = {at::full({i % 7 ? 10 : 30000}, i)}}));
      for (int i = 0; i < 100; ++i) {
        const auto reply = futures[i].get();
        good +=
            reply.text == std::to_string(t * 1000 + i) && reply.tensors[0][0].item<int64_t>() == i;
      }
    });
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(good, 400);

  EXPECT_TRUE(test::wait_until([&] { return client.stats("teacher/0").inflight_bytes == 0; }, 30s));
  const auto stats = client.stats("teacher/0");
  EXPECT_EQ(stats.calls, 400u);
  EXPECT_GT(stats.bytes_sent, 400u * 80);
  EXPECT_GT(stats.latency_p50_ms, 0);
  EXPECT_GE(stats.latency_p99_ms, stats.latency_p50_ms);
}

TEST_P(AgentContract, EveryErrorCodeCrossesTheWire) {
  for (int32_t kind = 0; kind <= static_cast<int32_t>(ErrorCode::kResourceExhausted); ++kind) {
    auto future = client.call("teacher/0", kFail, {kind});
    try {
      future.get();
      FAIL() << kind;
    } catch (const Error& error) {
      EXPECT_EQ(static_cast<int32_t>(error.code()), kind);
      EXPECT_EQ(error.message(), "from the handler");
      EXPECT_NE(error.origin().find("echo.cc"), std::string::npos) << error.origin();
      EXPECT_NE(std::string(error.what()).find("kind=" + std::to_string(kind)), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("peer=teacher/0"), std::string::npos);
    }
  }
  auto untyped = client.call("teacher/0", kFail, {100});
  EXPECT_EQ(code_of(untyped), ErrorCode::kRemote);
}

TEST_P(AgentContract, UnknownMethodsPeersAndTypesAreErrors) {
  auto nobody = client.call("teacher/0", kNobodyServes, {});
  EXPECT_EQ(code_of(nobody), ErrorCode::kUnavailable);
  auto stranger = client.call("teacher/9", kEcho, {});
  EXPECT_EQ(code_of(stranger), ErrorCode::kPeerLost);
  auto mistyped = client.call("teacher/0", kWrongReply, {.text = "x"});
  EXPECT_EQ(code_of(mistyped), ErrorCode::kMismatch);
  EXPECT_EQ(client.call("teacher/0", kEcho, {.text = "still here"}).get().text, "still here");
}

struct OlderRequest {
  std::string text;
  int64_t sleep_ms = 0;
  std::vector<at::Tensor> tensors;
  template <class A>
  void serialize(A& archive) {
    archive(text, sleep_ms, tensors);
  }
};

// As a process of another build would call it: the handler must not read what is not its type.
TEST_P(AgentContract, AMethodOfOtherTypesIsAMismatch) {
  static constexpr Method<OlderRequest, EchoReply> kOlder{"test.echo"};
  const auto ran = std::make_shared<std::atomic<int>>(0);
  Agent other(agent_options("teacher/1", rpc()));
  serve_echo(other, handlers.queue, ran);
  client.connect("teacher/1", other.address(), soon());
  auto future = client.call("teacher/1", kOlder, {.text = "x"});
  try {
    future.get(soon());
    FAIL() << "it was answered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    const std::string message = error.what();
    for (const std::string& part : {std::string("same retort version"), std::string("test.echo"),
                                    "called_as=" + schema_name(method_schema(kOlder)),
                                    "served_as=" + schema_name(method_schema(kEcho))})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(*ran, 0);
  EXPECT_EQ(client.call("teacher/1", kEcho, {.text = "same"}).get(soon()).text, "same");
}

TEST_P(AgentContract, ThenChainsCallsFromTheLoopThread) {
  HandlerThread more;
  serve_echo(client, more.queue);
  auto chained = client.call("teacher/0", kEcho, {.text = "a"})
                     .then([&](EchoReply first) {
                       return client.call("teacher/0", kEcho, {.text = first.text + "b"});
                     })
                     .then([](EchoReply second) { return second.text + "c"; });
  EXPECT_EQ(chained.get(), "abc");
}

TEST_P(AgentContract, ASideWithFewerChannelsIsReached) {
  auto other = rpc();
  other.channels = {"basic"};
  Agent third(agent_options("third/0", other));
  third.connect("teacher/0", server.address(), soon());
  EXPECT_EQ(
      third.call("teacher/0", kEcho, {.text = "x", .tensors = {at::ones({100000})}}).get().text,
      "x");
}

INSTANTIATE_TEST_SUITE_P(Transports, AgentContract,
                         ::testing::Values(Setup{"cma", Encryption::kNever, {"cma", "basic"}},
                                           Setup{"basic", Encryption::kNever, {"basic"}},
                                           Setup{"tls", Encryption::kAlways, {"basic"}}),
                         [](const auto& info) { return info.param.name; });

TEST(Agent, OneSideUnderTlsIsNotReachedByAPlainOne) {
  RpcOptions encrypted;
  encrypted.encryption = Encryption::kAlways;
  Agent server(agent_options("teacher/0", encrypted));
  Agent client(agent_options("student/0"));
  const auto briefly = Deadline::after(500ms);
  EXPECT_NE(code_of([&] { client.connect("teacher/0", server.address(), briefly); }),
            ErrorCode::kUnauthenticated);
  EXPECT_TRUE(server.peers().empty());
}

TEST(Agent, TheNamedPortAndAddressAreUsedAndPublished) {
  RpcOptions rpc;
  rpc.bind = "localhost";
  rpc.port = "20000-60000";
  rpc.advertise = "localhost";
  HandlerThread handlers;
  Agent server(agent_options("teacher/0", rpc));
  serve_echo(server, handlers.queue);
  EXPECT_EQ(server.address().rfind("localhost:", 0), 0u) << server.address();

  Agent client(agent_options("student/0"));
  client.connect("teacher/0", server.address(), soon());
  EXPECT_EQ(client.call("teacher/0", kEcho, {.text = "x"}).get().text, "x");
}

// In an hour without a pause the thread that never sleeps has always looked in vain by now.
TEST(Agent, SpinLooksForEventsInsteadOfSleeping) {
  RpcOptions rpc;
  rpc.spin = std::chrono::hours(1);
  rpc.heartbeat_interval = std::chrono::hours(2);
  rpc.peer_timeout = std::chrono::hours(4);
  HandlerThread handlers;
  Agent server(agent_options("teacher/0", rpc));
  serve_echo(server, handlers.queue);
  Agent client(agent_options("student/0"));
  client.connect("teacher/0", server.address(), soon());
  EXPECT_EQ(client.call("teacher/0", kEcho, {.text = "x"}).get(soon()).text, "x");
  EXPECT_TRUE(test::wait_until([&] { return server.vain_looks() > 1000; }, 30s));
  EXPECT_EQ(client.vain_looks(), 0u) << "the default sleeps";
}

TEST(Agent, BadOptionsAreRefused) {
  const auto code = [](const std::function<void(Agent::Options&)>& change) {
    auto options = agent_options("student/0");
    change(options);
    return code_of([&] { Agent agent(options); });
  };
  EXPECT_EQ(code([](auto& o) { o.secret.clear(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.name.clear(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.rpc.bind = "0.0.0.0"; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.rpc.transports = {"shm"}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.rpc.bind = "192.0.2.1"; }), ErrorCode::kUnavailable)
      << "an address of nobody";
}

TEST(Agent, AnAgentIsNoPeerOfItsOwn) {
  Agent agent(agent_options("both/0"));
  EXPECT_EQ(code_of([&] { agent.connect("both/0", agent.address(), soon()); }),
            ErrorCode::kUnauthenticated);
}

TEST(Agent, BothSidesMayConnectAtOnce) {
  HandlerThread handlers;
  Agent a(agent_options("a/0")), b(agent_options("b/0"));
  serve_echo(a, handlers.queue);
  serve_echo(b, handlers.queue);
  std::thread other([&] { b.connect("a/0", a.address(), soon()); });
  a.connect("b/0", b.address(), soon());
  other.join();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(a.call("b/0", kEcho, {.text = "x"}).get().caller, "a/0");
    EXPECT_EQ(b.call("a/0", kEcho, {.text = "x"}).get().caller, "b/0");
  }
}

}  // namespace
}  // namespace retort::rpc::testing
