// Tensors of a device over RPC, on the stand-in: they go from device to device by the map, and
// nothing on the way touches their memory from the host or copies them there. What CUDA has beyond
// that (streams, its channels) is in tests/gpu/gpu_rpc_test.cc.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "rpc/device_transfer.h"
#include "tests/losses/stand_in_device.h"
#include "tests/rpc/echo.h"
#include "tests/rpc/stand_in_transfer.h"
#include "tests/support/thrown.h"

namespace retort::rpc::testing {
namespace {

using test::stand_in_device;

Agent::Options device_agent(const std::string& name, const std::string& peer_role,
                            const std::map<std::string, int64_t>& map,
                            Encryption encryption = Encryption::kNever) {
  RpcOptions rpc;
  rpc.encryption = encryption;
  if (!map.empty()) rpc.device_maps[peer_role] = map;
  Agent::Options options = agent_options(name, rpc);
  options.devices = stand_in_transfer();
  return options;
}

at::Tensor on_device(int64_t count, int64_t first) {
  return at::arange(first, first + count).to(stand_in_device());
}

// A client and an echo server, each with a map to the other.
struct Pair {
  explicit Pair(Encryption encryption = Encryption::kNever,
                const std::map<std::string, int64_t>& back = {{"0", 0}})
      : server(device_agent("teacher/0", "student", back, encryption)),
        client(device_agent("student/0", "teacher", {{"0", 0}}, encryption)) {
    serve_echo(server, handlers.queue);
    client.connect("teacher/0", server.address(), soon());
  }
  HandlerThread handlers;
  Agent server, client;
};

class StandInRpc : public ::testing::TestWithParam<Encryption> {};

// Small and large, several at once, with tensors of the host and without elements between.
TEST_P(StandInRpc, TensorsGoFromDeviceToDevice) {
  constexpr int64_t kCalls = 12;
  const auto count = [](int64_t i) { return i % 3 == 0 ? int64_t{1} << 20 : 100; };
  Pair pair(GetParam());
  const StandInTraffic before = stand_in_traffic();
  const int64_t copies = test::stand_in_copies_to_host();

  std::vector<Future<EchoReply>> replies;
  for (int64_t i = 0; i < kCalls; ++i)
    replies.push_back(pair.client.call(
        "teacher/0", kEcho,
        {.text = std::to_string(i), .tensors = {on_device(count(i), i), at::full({3}, i)}}));
  std::vector<at::Tensor> received;
  for (int64_t i = 0; i < kCalls; ++i) {
    const EchoReply reply = replies[static_cast<size_t>(i)].get(soon());
    ASSERT_EQ(reply.tensors.size(), 2u);
    received.push_back(reply.tensors[0]);
    EXPECT_EQ(reply.tensors[0].device(), stand_in_device());
    EXPECT_TRUE(reply.tensors[1].is_cpu());
    EXPECT_TRUE(at::equal(reply.tensors[1], at::full({3}, i)));
  }

  EXPECT_EQ(test::stand_in_copies_to_host(), copies);
  const StandInTraffic after = stand_in_traffic();
  EXPECT_EQ(after.announced - before.announced, 2 * kCalls) << "there and back";
  EXPECT_EQ(after.sent - before.sent, 2 * kCalls);
  EXPECT_EQ(after.received - before.received, 2 * kCalls);
  for (int64_t i = 0; i < kCalls; ++i)
    EXPECT_TRUE(at::equal(received[static_cast<size_t>(i)].cpu(), at::arange(i, i + count(i))))
        << i;
}
INSTANTIATE_TEST_SUITE_P(Streams, StandInRpc,
                         ::testing::Values(Encryption::kNever, Encryption::kAlways),
                         [](const auto& info) {
                           return info.param == Encryption::kNever ? "plain" : "tls";
                         });

TEST(StandInRpcRefusals, ADeviceWithoutAnEntryNamesTheKeyAndNothingTravels) {
  Pair pair(Encryption::kNever, {});  // no way back
  const StandInTraffic before = stand_in_traffic();
  const int64_t copies = test::stand_in_copies_to_host();
  auto reply = pair.client.call("teacher/0", kEcho, {.text = {}, .tensors = {on_device(10, 0)}});
  test::expect_error(ErrorCode::kInvalidArgument, "no entry rpc.device_maps.student.0",
                     [&] { reply.get(soon()); });

  auto request = pair.server.call("student/0", kEcho, {.text = {}, .tensors = {on_device(10, 0)}});
  test::expect_error(ErrorCode::kInvalidArgument, "add the key 0 to the map of 'student'",
                     [&] { request.get(soon()); });
  EXPECT_EQ(stand_in_traffic().sent - before.sent, 1) << "the first request alone";
  EXPECT_EQ(test::stand_in_copies_to_host(), copies);

  // Both refusals leave the connection as it was.
  const EchoReply host =
      pair.client.call("teacher/0", kEcho, {.text = "host", .tensors = {at::full({3}, 1)}})
          .get(soon());
  EXPECT_TRUE(at::equal(host.tensors[0], at::full({3}, 1)));
}

TEST(StandInRpcRefusals, OnlyItsOwnTypeOfDeviceTravels) {
  Pair pair;
  auto reply =
      pair.client.call("teacher/0", kEcho, {.text = {}, .tensors = {at::empty({2}, at::kMeta)}});
  test::expect_error(ErrorCode::kUnavailable, "rpc.device_maps.teacher.0 needs the module",
                     [&] { reply.get(soon()); });
}

TEST(StandInRpcRefusals, AMapNamesDevicesThatAreHere) {
  test::expect_error(ErrorCode::kInvalidArgument, "names device 1 here, but only 1 can be seen",
                     [] {
                       Agent(device_agent("student/0", "teacher", {{"1", 0}}));
                     });
}

TEST(StandInRpcRefusals, ATensorWithoutElementsArrivesOnTheCpuIfThereIsAnEntry) {
  Pair pair(Encryption::kNever, {});
  const auto call = [&](Agent& agent, const char* peer) {
    return agent.call(peer, kEcho, {.text = {}, .tensors = {on_device(0, 0), at::full({3}, 1)}});
  };
  auto reply = call(pair.client, "teacher/0");
  const EchoReply echo = reply.get(soon());
  EXPECT_TRUE(echo.tensors[0].is_cpu());
  EXPECT_EQ(echo.tensors[0].numel(), 0);

  auto refused = call(pair.server, "student/0");
  EXPECT_EQ(code_of(refused), ErrorCode::kInvalidArgument);
}

// Two agents with maps to each other that see these devices.
struct Numbered {
  Numbered(const std::map<std::string, int64_t>& map, std::vector<std::string> ids_here,
           const std::map<std::string, int64_t>& back, std::vector<std::string> ids_there)
      : server(options("teacher/0", "student", back, std::move(ids_there))),
        client(options("student/0", "teacher", map, std::move(ids_here))) {
    serve_echo(server, handlers.queue);
  }
  static Agent::Options options(const std::string& name, const std::string& peer_role,
                                const std::map<std::string, int64_t>& map,
                                std::vector<std::string> ids) {
    Agent::Options options = device_agent(name, peer_role, map);
    options.devices = stand_in_transfer(std::move(ids));
    return options;
  }
  void connect() { client.connect("teacher/0", server.address(), soon()); }

  HandlerThread handlers;
  Agent server, client;
};

TEST(StandInRpcNumbering, AgentsThatTurnAMapRoundRefuseEachOther) {
  Numbered turned({{"0", 0}}, {"A", "B"}, {{"0", 0}}, {"B", "A"});
  // Whoever looks first says it; either names both.
  for (const char* part : {"in another order", "student/0", "teacher/0"})
    test::expect_error(ErrorCode::kInvalidArgument, part, [&] { turned.connect(); });

  Numbered more({{"0", 2}}, {"A", "B"}, {{"2", 0}}, {"A", "B", "C"});
  EXPECT_NO_THROW(more.connect());
  Numbered absent({{"0", 2}}, {"A", "B", "C"}, {}, {"A", "B"});
  test::expect_error(ErrorCode::kInvalidArgument,
                     "rpc.device_maps.teacher names device 2 of teacher/0, which sees 2 devices",
                     [&] { absent.connect(); });
}

// It is no mistake until a tensor is to go there.
TEST(StandInRpcNumbering, APeerWithoutDevicesIsRefusedWithTheFirstTensorForOne) {
  ::testing::internal::CaptureStderr();
  HandlerThread handlers;
  Agent server(agent_options("teacher/0"));
  Agent client(device_agent("student/0", "teacher", {{"0", 0}}));
  serve_echo(server, handlers.queue);
  client.connect("teacher/0", server.address(), soon());
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(
                "rpc.device_maps.teacher: teacher/0 sees no devices"),
            std::string::npos);

  auto refused = client.call("teacher/0", kEcho, {.text = {}, .tensors = {on_device(10, 0)}});
  test::expect_error(ErrorCode::kUnavailable, "to a device of a peer that sees none",
                     [&] { refused.get(soon()); });
  const EchoReply host =
      client.call("teacher/0", kEcho, {.text = "host", .tensors = {at::full({3}, 1)}}).get(soon());
  EXPECT_TRUE(at::equal(host.tensors[0], at::full({3}, 1)));
}

TEST(StandInRpcNumbering, AgentsThatSeeAPartOfTheDevicesAreJoinedAndTheLogNamesThem) {
  ::testing::internal::CaptureStderr();
  {
    Numbered part({{"0", 0}}, {"A", "B"}, {{"0", 0}}, {"B"});
    part.connect();
    const EchoReply reply =
        part.client.call("teacher/0", kEcho, {.text = {}, .tensors = {on_device(10, 0)}})
            .get(soon());
    EXPECT_TRUE(at::equal(reply.tensors[0].cpu(), at::arange(10)));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("rpc.device_maps.teacher: 0 of student/0 (A) is 0 of teacher/0 (B)"),
            std::string::npos)
      << log;
}

// Of each pair of peers the log has each channel once, on both ends, however many pipes and tensors
// there are.
TEST(StandInRpcChannels, AreToldOnceForEachPair) {
  ::testing::internal::CaptureStderr();
  {
    Pair pair;
    for (int64_t i = 0; i < 3; ++i)
      pair.client.call("teacher/0", kEcho, {.text = {}, .tensors = {on_device(10, i)}}).get(soon());
    pair.client.close();
    pair.client.join();
    pair.server.close();
    pair.server.join();
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const std::string pair : {"student/0 and teacher/0", "teacher/0 and student/0"}) {
    const std::string line =
        pair + ": tensors of devices travel by channel staged, by copies of the host";
    const size_t first = log.find(line);
    EXPECT_NE(first, std::string::npos) << line << " is missing in: " << log;
    EXPECT_EQ(log.find(line, first + 1), std::string::npos) << log;
    EXPECT_NE(log.find(pair + ": tensors of the host travel by channel "), std::string::npos)
        << log;
  }
}

// A thread begins with device 0, where calls that name no device would make a context.
TEST(StandInThreads, TheAgentsHasTheDeviceOfTheProcess) {
  const auto device_of_loop = [](const std::string& name, at::Device device) {
    HandlerThread handlers;
    Agent::Options options = agent_options(name);
    options.device = device;
    Agent server(agent_options("teacher/0")), client(options);
    serve_echo(server, handlers.queue);
    client.connect("teacher/0", server.address(), soon());
    // The answer waits until it is said what is done with it: that is done on the agent's thread.
    handlers.paused = true;
    auto device_there =
        client.call("teacher/0", kEcho, {.text = {}, .tensors = {}}).then([](const EchoReply&) {
          return test::stand_in_device_of_thread();
        });
    handlers.paused = false;
    return device_there.get(soon());
  };
  EXPECT_EQ(device_of_loop("student/0", at::kCPU), -1);
  EXPECT_EQ(device_of_loop("student/0", at::Device(stand_in_device().type(), 1)), 1);
}

TEST(HostCopy, IsPinnedAndOfTheDevicesTensorsOnly) {
  const at::Tensor host = at::arange(6).view({2, 3});
  const int64_t pinned = test::stand_in_pinned_blocks(), copies = test::stand_in_copies_to_host();
  EXPECT_TRUE(host_copy(host).is_same(host));
  EXPECT_EQ(test::stand_in_pinned_blocks(), pinned);

  const at::Tensor copy = host_copy(host.to(stand_in_device()).t());
  EXPECT_TRUE(copy.is_cpu() && copy.is_contiguous());
  EXPECT_TRUE(at::equal(copy, host.t()));
  EXPECT_EQ(test::stand_in_pinned_blocks(), pinned + 1);
  EXPECT_EQ(test::stand_in_copies_to_host(), copies + 1);
}

TEST(UseOnCurrentStream, IsRecordedForTensorsOfDevices) {
  const int64_t recorded = test::stand_in_recorded_uses();
  use_on_current_stream({});
  use_on_current_stream(at::arange(3));
  EXPECT_EQ(test::stand_in_recorded_uses(), recorded);
  use_on_current_stream(on_device(3, 0));
  EXPECT_EQ(test::stand_in_recorded_uses(), recorded + 1);
}

}  // namespace
}  // namespace retort::rpc::testing
