// Tensors that travel from device to device: inside one process, between two, and onto another
// device by the map.
#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <cstdio>

#include "tests/gpu/device_under_test.h"
#include "tests/rpc/echo.h"
#include "tests/support/process.h"

namespace retort::rpc::testing {
namespace {

using test::ChildProcess;

Agent::Options device_agent(const std::string& name, const std::string& peer_role,
                            const std::map<std::string, int64_t>& map) {
  RpcOptions rpc;
  rpc.device_maps[peer_role] = map;
  Agent::Options options = agent_options(name, rpc);
  options.devices = load_device_transfer(gpu_testing::module_path());
  return options;
}

at::Tensor on(int64_t device, int64_t count, int64_t first) {
  return at::arange(first, first + count,
                    at::TensorOptions().device(gpu_testing::device_number(device)));
}

// Several calls at once, small and large, with host tensors between; each right after the kernel
// that makes it was queued.
void exchange(Agent& client, int64_t home) {
  std::vector<Future<EchoReply>> replies;
  for (int64_t i = 0; i < 20; ++i)
    replies.push_back(
        client.call("teacher/0", kEcho,
                    {.text = std::to_string(i),
                     .tensors = {on(0, i % 3 == 0 ? 1 << 20 : 100, i), at::full({3}, i)}}));
  for (int64_t i = 0; i < 20; ++i) {
    const EchoReply reply = replies[static_cast<size_t>(i)].get(soon());
    ASSERT_EQ(reply.tensors.size(), 2u);
    EXPECT_EQ(reply.tensors[0].device(), gpu_testing::device_number(home));
    EXPECT_TRUE(at::equal(reply.tensors[0].cpu(), on(0, i % 3 == 0 ? 1 << 20 : 100, i).cpu())) << i;
    EXPECT_TRUE(reply.tensors[1].is_cpu());
    EXPECT_TRUE(at::equal(reply.tensors[1], at::full({3}, i)));
  }
}

TEST(GpuRpc, RoundTripInsideOneProcess) {
  RETORT_NEEDS_DEVICES(1);
  HandlerThread handlers;
  Agent server(device_agent("teacher/0", "student", {{"0", 0}})),
      client(device_agent("student/0", "teacher", {{"0", 0}}));
  serve_echo(server, handlers.queue);
  client.connect("teacher/0", server.address(), soon());
  exchange(client, 0);
}

TEST(GpuRpc, TheMapNamesTheDevice) {
  RETORT_NEEDS_DEVICES(2);
  HandlerThread handlers;
  Agent server(device_agent("teacher/0", "student", {{"1", 1}})),
      client(device_agent("student/0", "teacher", {{"0", 1}}));
  serve_echo(server, handlers.queue);
  client.connect("teacher/0", server.address(), soon());
  exchange(client, 1);  // to the teacher's device 1, and from there to the student's device 1
}

TEST(GpuRpc, RoundTripBetweenProcesses) {
  RETORT_NEEDS_DEVICES(1);
  auto child = ChildProcess::spawn({.role = "server", .args = {}, .env = {}, .program = {}});
  const std::string address = child.read_line(soon());
  Agent client(device_agent("student/0", "teacher", {{"0", 0}}));
  client.connect("teacher/0", address, soon());
  exchange(client, 0);
  client.close();
  client.join();
  child.close_stdin();
  EXPECT_EQ(child.wait(soon()), 0);
}

TEST(GpuRpc, ADeviceWithoutAnEntryIsRefused) {
  RETORT_NEEDS_DEVICES(1);
  HandlerThread handlers;
  Agent server(device_agent("teacher/0", "student", {})),
      client(device_agent("student/0", "teacher", {{"0", 0}}));
  serve_echo(server, handlers.queue);
  client.connect("teacher/0", server.address(), soon());
  auto reply = client.call("teacher/0", kEcho, {.tensors = {on(0, 10, 0)}});
  EXPECT_EQ(code_of(reply), ErrorCode::kInvalidArgument) << "the way back has no map";
}

int serve() {
  HandlerThread handlers;
  Agent server(device_agent("teacher/0", "student", {{"0", 0}}));
  serve_echo(server, handlers.queue);
  std::printf("%s\n", server.address().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

}  // namespace
}  // namespace retort::rpc::testing

int main(int argc, char** argv) {
  const auto role = retort::test::spawned_role();
  retort::gpu_testing::find_device();
  if (role) return retort::rpc::testing::serve();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
